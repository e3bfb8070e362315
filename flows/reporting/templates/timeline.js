// Zoomable timeline of batches per vGPU. Drag to select a span, Shift-drag to move, buttons to zoom.
(function () {
  "use strict";
  const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  for (const box of document.querySelectorAll("[data-timeline]")) start(box);

  function start(box) {
    const data = JSON.parse(box.querySelector("script").textContent);
    const canvas = box.querySelector("canvas"), tip = box.querySelector(".tip");
    const pen = canvas.getContext("2d");
    const rowHeight = data.rows.length > 60 ? 9 : data.rows.length > 24 ? 13 : 18;
    const poolHead = 19, left = 118, top = 22;
    const whole = Math.max(data.shown_ms, 1);
    const count = data.bars.length / 6;
    let from = 0, to = whole, drag = null;
    if (count > 3000) { to = Math.max(whole * 3000 / count, 200); from = (whole - to) / 2; to += from; }

    const rowTop = [], heads = [];
    let y = top, before = -1;
    data.rows.forEach((row) => {
      if (row[1] !== before) { heads.push([y, row[1]]); y += poolHead; before = row[1]; }
      rowTop.push(y); y += rowHeight;
    });
    const height = y + 6;
    canvas.style.height = height + "px";

    function width() { return canvas.clientWidth; }
    function xOf(ms) { return left + (ms - from) / (to - from) * (width() - left - 8); }
    function msOf(x) { return from + (x - left) / (width() - left - 8) * (to - from); }

    function draw() {
      const ratio = window.devicePixelRatio || 1;
      canvas.width = width() * ratio; canvas.height = height * ratio;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width(), height);
      pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
      axis();
      pen.textAlign = "left";
      for (const [at, pool] of heads) {
        const own = data.pools[pool][1];
        own.forEach((colour, i) => { pen.fillStyle = colour; pen.fillRect(0, at + 5 + 10 * i / own.length, 4, 10 / own.length); });
        pen.fillStyle = shade("--ink"); pen.fillText(data.pools[pool][0], 9, at + 14);
      }
      pen.fillStyle = shade("--faint"); pen.textAlign = "right"; pen.font = (rowHeight < 12 ? 8 : 10) + "px monospace";
      const stripe = shade("--stripe"), track = shade("--track"), faint = shade("--faint");
      data.rows.forEach((row, i) => {
        pen.fillStyle = i % 2 ? stripe : track;
        pen.fillRect(left, rowTop[i], width() - left - 8, rowHeight - 1);
        pen.fillStyle = faint;
        pen.fillText(row[0].length > 18 ? "…" + row[0].slice(-17) : row[0], left - 6, rowTop[i] + rowHeight - (rowHeight < 12 ? 2 : 4));
      });
      pen.save(); pen.beginPath(); pen.rect(left, top, width() - left - 8, height); pen.clip();
      const b = data.bars;
      for (let i = 0; i < b.length; i += 6) {
        const begin = b[i + 1], end = begin + b[i + 2];
        if (end < from || begin > to) continue;
        const x = xOf(begin), w = Math.max(xOf(end) - x - (xOf(end) - x > 3 ? 1 : 0), 0.7);
        pen.fillStyle = data.models[b[i + 5]][1];
        pen.fillRect(x, rowTop[b[i]] + 1, w, rowHeight - 3);
        if (w > 16 && rowHeight >= 13) {
          pen.fillStyle = "#fff"; pen.textAlign = "center"; pen.font = "10px sans-serif";
          pen.fillText(b[i + 4], x + w / 2, rowTop[b[i]] + rowHeight - (rowHeight > 15 ? 6 : 4));
        }
      }
      if (drag && drag.select) {
        pen.fillStyle = "rgba(59,111,182,.15)";
        pen.fillRect(Math.min(drag.x, drag.now), top, Math.abs(drag.now - drag.x), height - top);
      }
      pen.restore();
    }

    function axis() {
      const span = to - from;
      let step = Math.pow(10, Math.floor(Math.log10(span / 6)));
      for (const m of [1, 2, 5, 10]) if (span / (step * m) <= 9) { step *= m; break; }
      pen.textAlign = "center"; pen.fillStyle = shade("--soft"); pen.strokeStyle = shade("--line");
      for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
        const x = xOf(t);
        pen.beginPath(); pen.moveTo(x, top - 4); pen.lineTo(x, top); pen.stroke();
        if (x > left + 14 && x < width() - 30) pen.fillText(label(t, step), x, 12);
      }
    }

    function label(ms, step) {
      if (step >= 1000) return (ms / 1000).toFixed(0) + " s";
      if (ms >= 1000 || whole >= 10000) return (ms / 1000).toFixed(step >= 100 ? 1 : step >= 10 ? 2 : 3) + " s";
      return ms.toFixed(step < 1 ? 1 : 0) + " ms";
    }

    function show(a, b) {
      const least = 1;
      if (b - a < least) { const c = (a + b) / 2; a = c - least / 2; b = c + least / 2; }
      if (b - a >= whole) { a = 0; b = whole; }
      if (a < 0) { b -= a; a = 0; }
      if (b > whole) { a -= b - whole; b = whole; }
      from = Math.max(a, 0); to = b; draw();
    }

    function zoom(factor, at) { show(at - (at - from) * factor, at + (to - at) * factor); }

    canvas.addEventListener("mousedown", (e) => {
      drag = { x: e.offsetX, now: e.offsetX, from: from, to: to, select: !e.shiftKey }; e.preventDefault();
    });
    canvas.addEventListener("mousemove", (e) => {
      if (drag) {
        drag.now = e.offsetX;
        if (!drag.select) { const by = (drag.x - drag.now) / (width() - left - 8) * (drag.to - drag.from); show(drag.from + by, drag.to + by); }
        else draw();
      }
      hover(e);
    });
    window.addEventListener("mouseup", () => {
      if (drag && drag.select && Math.abs(drag.now - drag.x) > 4) {
        const a = msOf(Math.min(drag.x, drag.now)), b = msOf(Math.max(drag.x, drag.now));
        drag = null; show(a, b);
      } else if (drag) { drag = null; draw(); }
    });
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    canvas.addEventListener("dblclick", () => show(0, whole));
    canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, msOf(e.offsetX));
    }, { passive: false });
    box.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
      const what = button.dataset.do, middle = (from + to) / 2, span = to - from;
      if (what === "in") zoom(0.5, middle);
      if (what === "out") zoom(2, middle);
      if (what === "left") show(from - span / 2, to - span / 2);
      if (what === "right") show(from + span / 2, to + span / 2);
      if (what === "all") show(0, whole);
    }));

    function hover(e) {
      const ms = msOf(e.offsetX), b = data.bars;
      const row = rowTop.findIndex((t) => e.offsetY >= t && e.offsetY < t + rowHeight);
      for (let i = 0; row >= 0 && i < b.length; i += 6) {
        if (b[i] === row && ms >= b[i + 1] && ms <= b[i + 1] + b[i + 2]) {
          tip.textContent = data.rows[row][0] + " · " + data.models[b[i + 5]][0] + " · batch " + b[i + 3] + " of " + b[i + 4] +
            (b[i + 4] === 1 ? " sample · " : " samples · ") + b[i + 1].toFixed(2) + " ms + " + b[i + 2].toFixed(2) + " ms";
          tip.style.left = Math.min(e.offsetX + 12, width() - 340) + "px";
          tip.style.top = e.offsetY + 14 + "px"; tip.hidden = false;
          return;
        }
      }
      tip.hidden = true;
    }
    window.addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    draw();
  }
})();

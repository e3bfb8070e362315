// Live page: looks at /live.json every two seconds and at /history.json every minute.
(function () {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const facts = read("facts");
  let live = read("live"), history = read("history");
  const colours = facts.models.map((model) => model.colour);
  const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const $ = (id) => document.getElementById(id);
  const number = (v) => v === null || v === undefined ? "–" : Number.isInteger(v) ? v.toLocaleString("en") : v >= 100 ? Math.round(v).toLocaleString("en") : v >= 10 ? v.toFixed(1) : v.toFixed(2).replace(/\.?0+$/, "") || "0";
  const percent = (v) => v === null || v === undefined ? "–" : (Math.floor(v * 10000) / 100).toFixed(2) + " %";
  const whole = (v) => (v * 100).toFixed(0) + " %";
  const tone = (v) => v === null || v === undefined ? "" : v >= 0.99 ? "good" : "bad";
  const put = (node, text, kind) => { if (!node) return; if (node.textContent !== text) node.textContent = text; if (kind !== undefined) node.className = kind; };

  function showNow() {
    const problem = $("problem");
    const words = live.problem || live.warning || "";
    problem.hidden = !words; problem.textContent = words;
    put($("time"), live.time ? "as of " + new Date(live.time).toLocaleTimeString() : "");
    let served = 0, done = 0, offered = 0;
    facts.served.forEach((model, i) => {
      const row = document.querySelector('[data-row="' + i + '"]'), m = (live.models || {})[model.name];
      const cell = (name) => row && row.querySelector('[data-cell="' + name + '"]');
      if (!m) return;
      served += m.served; done += m.served + m.late + m.failed + m.dropped; offered += m.offered_rps;
      put(cell("offered"), number(m.offered_rps) + " rps");
      put(cell("attainment"), percent(m.attainment), tone(m.attainment));
      // Percentiles come from coarse buckets; the exact count of late answers bounds them by the SLO.
      const lateShare = m.late / Math.max(m.served + m.late, 1);
      const bounded = (v, share) => v !== null && lateShare <= 1 - share ? Math.min(v, model.slo_ms) : v;
      const p50 = bounded(m.p50_ms, 0.5), p99 = bounded(m.p99_ms, 0.99);
      put(cell("p50"), p50 === null ? "–" : number(p50) + " ms");
      put(cell("p99"), p99 === null ? "–" : number(p99) + " ms", p99 > model.slo_ms ? "bad" : "");
      put(cell("queued"), number(m.queued));
    });
    const all = done ? served / done : null;
    put($("t-attainment"), percent(all), tone(all));
    put($("t-offered"), number(offered) + " rps");
    const up = live.workers_up, total = facts.vgpus.length;
    put($("t-workers"), up === null || up === undefined ? "–" : up + " of " + total, up < total ? "bad" : "");
    put($("t-flight"), number(live.in_flight));
    put($("t-state"), live.problem ? "unreachable" : live.rollout || "–", live.problem ? "bad" : "");
    showPools(); showVgpus(); showDrops();
  }

  function showPools() {
    for (const pool of facts.pools) {
      // A stage's share of its pool's time; a pool is busy with all its stages together.
      const own = pool.stages.map((stage) => (live.pools || {})[stage[1]]);
      const known = own.filter((v) => v !== undefined);
      const busy = Math.min(known.reduce((sum, v) => sum + v, 0), 1);
      pool.stages.forEach((stage, i) => {
        fill("data-load", stage[0], own[i] || 0); fill("data-all", stage[0], busy);
        const text = !known.length ? "" : "busy " + whole(busy) + (pool.stages.length > 1 ? ", here " + whole(own[i] || 0) : "");
        for (const label of document.querySelectorAll('[data-slack="' + stage[0] + '"]')) label.textContent = text;
      });
    }
  }
  function fill(kind, mark, value) {
    for (const bar of document.querySelectorAll("[" + kind + '="' + mark + '"]')) bar.setAttribute("width", bar.dataset.most * value);
  }

  let cells = null;
  function buildVgpus() {
    const place = $("vgpus"); if (!place) return;
    cells = []; let models = "", row = null, before = -1;
    facts.vgpus.forEach((vgpu) => {
      const pool = facts.pools[vgpu[0]];
      if (pool.models.join() !== models) {
        models = pool.models.join();
        const head = document.createElement("h3");
        pool.models.forEach((model, i) => {
          const dot = document.createElement("i");
          dot.className = "swatch"; dot.style.background = colours[model];
          head.append(...(i ? [", "] : []), dot, facts.models[model].name);
        });
        place.append(head);
      }
      if (vgpu[0] !== before) {
        before = vgpu[0];
        const line = document.createElement("div"), label = document.createElement("b");
        line.className = "pool"; label.textContent = pool.label; row = document.createElement("div");
        line.append(label, row); place.append(line);
      }
      const cell = document.createElement("i"); cell.className = "cell"; cell.title = vgpu[1];
      row.append(cell); cells.push(cell);
    });
  }
  function showVgpus() {
    if (!cells) buildVgpus();
    (live.vgpus || []).forEach((v, i) => {
      const cell = cells && cells[i]; if (!cell) return;
      const kind = v.lost ? " bad" : v.drift === null ? "" : v.drift > 2 ? " bad" : v.drift > 1.2 ? " slow" : " ok";
      if (cell.className !== "cell" + kind) cell.className = "cell" + kind;
      const parts = v.by_model.length > 1 ? " (" + v.by_model.map((p) => facts.models[p[0]].name + " " + whole(p[1])).join(", ") + ")" : "";
      cell.title = facts.vgpus[i][1] + (v.lost ? ": lost" : v.batches ? ": " + v.batches + " batches, busy " + whole(v.busy) + parts +
        ", " + number(v.drift) + " × its profile" : ": idle");
    });
  }

  function rows(body, list, empty, columns) {
    if (!body) return;
    body.replaceChildren();
    if (!list.length) {
      const tr = body.insertRow(), td = tr.insertCell(); td.colSpan = columns; td.className = "left"; td.textContent = empty; return;
    }
    for (const values of list) {
      const tr = body.insertRow();
      values.forEach((value) => { const td = tr.insertCell(); td.textContent = value.text; td.className = value.kind || ""; });
    }
  }
  let dropsShown = "";
  function showDrops() {
    const merged = new Map();
    const at = (d) => { const k = d.model + "\n" + d.reason; if (!merged.has(k)) merged.set(k, { model: d.model, reason: d.reason, now: 0, day: null }); return merged.get(k); };
    for (const d of live.drops || []) at(d).now = d.count;
    for (const d of history.drops || []) at(d).day = d.dropped;
    const list = [...merged.values()].sort((a, b) => (b.day || b.now) - (a.day || a.now)).slice(0, 20);
    const text = JSON.stringify(list); if (text === dropsShown) return; dropsShown = text;
    rows($("drops"), list.map((d) => [{ text: d.model, kind: "name" }, { text: d.reason.replace(/_/g, " "), kind: "left" }, { text: d.now.toLocaleString("en") }, { text: d.day === null ? "–" : d.day.toLocaleString("en") }]), "Nothing was dropped.", 4);
  }

  function ended(r) { return r.state !== "done" && r.outcome ? r.state + ": " + r.outcome : r.outcome || r.state; }

  function showDay() {
    put($("note"), history.note ? "History: " + history.note + "." : "");
    rows($("rollouts"), (history.rollouts || []).slice().sort((a, b) => b.at - a.at).slice(0, 12).map((r) => [
      { text: new Date(r.at * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" }) },
      { text: r.plan_id, kind: "left" }, { text: ended(r), kind: "left said" }, { text: r.reason, kind: "left name" }]), "None in the last day.", 4);
    facts.served.forEach((model, i) => {
      const row = document.querySelector('[data-row="' + i + '"]');
      let offered = 0, served = 0; const points = [];
      for (const minute of history.minutes || []) {
        const m = minute.models[model.name]; if (!m || !m.offered) continue;
        offered += m.offered; served += m.served; points.push([minute.minute, Math.min(m.served / m.offered, 1)]);
      }
      const day = offered ? Math.min(served / offered, 1) : null;
      put(row.querySelector('[data-cell="day"]'), percent(day), tone(day));
      spark(row.querySelector("canvas"), points, i);
    });
    drawDay();
    showDrops();
  }

  function canvasOf(canvas, cssHeight) {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * ratio; canvas.height = cssHeight * ratio; canvas.style.height = cssHeight + "px";
    const pen = canvas.getContext("2d"); pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.clearRect(0, 0, width, cssHeight);
    return [pen, width];
  }
  function span() { const end = Math.ceil((live.at_s || Date.parse(live.time) / 1000) / 60) * 60; return [end - 86400, end]; }

  function spark(canvas, points) {
    const [pen, width] = canvasOf(canvas, 24), [from, to] = span();
    pen.fillStyle = shade("--track"); pen.fillRect(0, 0, width, 24);
    const served = shade("--served"), missed = shade("--bad");
    for (const [at, value] of points) {
      const x = (at - from) / (to - from) * width, low = Math.max(value, 0.9);
      pen.fillStyle = value >= 0.99 ? served : missed;
      const h = 3 + (low - 0.9) / 0.1 * 21; pen.fillRect(x, 24 - h, Math.max(width / 1440, 0.8), h);
    }
  }

  function drawDay() {
    const canvas = $("day"); if (!canvas) return;
    const height = 390, [pen, width] = canvasOf(canvas, height), [from, to] = span();
    const left = 64, right = 8, top = 10, split = 190, low = 216, foot = 274, bandTop = 294, bandFoot = 360;
    const x = (at) => left + (at - from) / (to - from) * (width - left - right);
    let most = 1;
    for (const minute of history.minutes || []) for (const name in minute.models) most = Math.max(most, minute.models[name].offered / 60);
    most *= 1.08;
    const y = (rps) => split - rps / most * (split - top);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif"; pen.lineWidth = 1;
    if (!(history.minutes || []).length) { pen.textAlign = "center"; pen.fillStyle = shade("--faint"); pen.fillText("No whole minute has been seen yet.", width / 2, (top + split) / 2); }
    pen.textAlign = "right"; pen.fillStyle = shade("--soft"); pen.strokeStyle = shade("--line");
    let step = Math.pow(10, Math.floor(Math.log10(most / 3))); for (const m of [1, 2, 5, 10]) if (most / (step * m) <= 5) { step *= m; break; }
    for (let v = 0; v <= most; v += step) { pen.beginPath(); pen.moveTo(left, y(v)); pen.lineTo(width - right, y(v)); pen.stroke(); pen.fillText(number(v) + (v + step > most ? " rps" : ""), left - 6, y(v) + 4); }
    const ya = (a) => foot - (Math.max(a, 0.9) - 0.9) / 0.1 * (foot - low);
    for (const v of [0.9, 0.95, 1]) { pen.beginPath(); pen.moveTo(left, ya(v)); pen.lineTo(width - right, ya(v)); pen.stroke(); pen.fillText((v * 100).toFixed(0) + " %", left - 6, ya(v) + 4); }
    pen.setLineDash([4, 3]); pen.strokeStyle = shade("--bad"); pen.beginPath(); pen.moveTo(left, ya(0.99)); pen.lineTo(width - right, ya(0.99)); pen.stroke(); pen.setLineDash([]);
    const yl = (share) => bandFoot - Math.min(share, 1.2) / 1.2 * (bandFoot - bandTop);
    pen.strokeStyle = shade("--line");
    for (const v of [0, 0.5, 1]) { pen.beginPath(); pen.moveTo(left, yl(v)); pen.lineTo(width - right, yl(v)); pen.stroke(); pen.fillText((v * 100).toFixed(0) + " %", left - 6, yl(v) + 4); }
    pen.textAlign = "center"; pen.fillStyle = shade("--soft");
    const zone = new Date().getTimezoneOffset() * 60;
    const hours = width < 600 ? 21600 : 10800;
    for (let t = Math.ceil((from - zone) / hours) * hours + zone; t <= to; t += hours)
      if (x(t) > left + 12 && x(t) < width - 22) pen.fillText(new Date(t * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }), x(t), height - 4);
    facts.served.forEach((model) => {
      pen.strokeStyle = model.colour; pen.lineWidth = 1.3;
      curve(pen, model.name, x, (m) => y(m.offered / 60));
      curve(pen, model.name, x, (m) => m.mean_ms === null || m.mean_ms === undefined ? null : yl(m.mean_ms / model.slo_ms));
    });
    const good = shade("--good"), bad = shade("--bad");
    for (const minute of history.minutes || []) {
      let offered = 0, served = 0; for (const name in minute.models) { offered += minute.models[name].offered; served += minute.models[name].served; }
      if (!offered) continue;
      const a = Math.min(served / offered, 1); pen.fillStyle = a >= 0.99 ? good : bad; pen.fillRect(x(minute.minute) - 0.5, ya(a) - 1, Math.max(width / 1440, 1.2), 2.2);
    }
    for (const r of history.rollouts || []) {
      const at = x(r.at); if (at < left) continue;
      pen.strokeStyle = "#7d5ba6"; pen.lineWidth = 1; pen.beginPath(); pen.moveTo(at, top); pen.lineTo(at, bandFoot + 4); pen.stroke();
      pen.fillStyle = "#7d5ba6"; pen.beginPath(); pen.moveTo(at, bandFoot + 2); pen.lineTo(at - 4, bandFoot + 9); pen.lineTo(at + 4, bandFoot + 9); pen.fill();
    }
  }

  function curve(pen, name, x, height) {
    pen.beginPath(); let last = -1e9;
    for (const minute of history.minutes || []) {
      const m = minute.models[name], at = m ? height(m) : null; if (at === null) continue;
      if (minute.minute - last > 180) pen.moveTo(x(minute.minute), at); else pen.lineTo(x(minute.minute), at);
      last = minute.minute;
    }
    pen.stroke();
  }

  const servedAtStart = live.plan ? live.plan.plan_id + "/" + live.plan.generation : "";
  async function look(what) {
    try { return await (await fetch(what, { cache: "no-store" })).json(); } catch (error) { return null; }
  }
  setInterval(async () => {
    const next = await look("/live.json");
    if (!next) { live.problem = "The page's own server does not answer."; showNow(); return; }
    live = next;
    const served = live.plan ? live.plan.plan_id + "/" + live.plan.generation : servedAtStart;
    if (served !== servedAtStart) location.reload(); else showNow();
  }, 2000);
  setInterval(async () => { const next = await look("/history.json"); if (next) { history = next; showDay(); } }, 60000);
  window.addEventListener("resize", showDay);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showDay);
  showNow(); showDay();
  document.body.dataset.drawnMs = performance.now().toFixed(0); // since the page was asked for
})();

from pathlib import Path

from flows.state import project_state, warehouse_path


def test_state_lies_in_this_folder_unless_the_environment_moves_it(tmp_path: Path) -> None:
    assert project_state({}).home == Path(".poolpipe")
    state = project_state({"POOLPIPE_HOME": str(tmp_path)})
    assert state.serve == tmp_path / "serve"
    assert {p.parent for p in (state.models, state.artifacts, state.prefect, state.reports)} == {
        tmp_path
    }


def test_the_warehouse_is_a_file_of_this_folder_unless_the_environment_moves_it() -> None:
    assert warehouse_path({}) == Path("poolpipe.duckdb")
    assert warehouse_path({"POOLPIPE_WAREHOUSE": "/data/w.duckdb"}) == Path("/data/w.duckdb")

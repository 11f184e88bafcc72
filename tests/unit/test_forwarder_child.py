"""When a master wants a forwarder."""

from pathlib import Path

import pytest

from pwgrid.common.selectors_loop import Loop
from pwgrid.master.child_files import ChildFileWriter
from pwgrid.master.forwarder import ForwarderChild
from pwgrid.registry import embedded_redis
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from tests.support.master_config import master_config


@pytest.mark.parametrize(
    ("host", "is_embedded", "is_due"), [("", False, False), ("10.0.0.1", False, True), ("10.0.0.1", True, False)]
)
def test_it_is_due_only_where_there_can_be_other_hosts(
    tmp_path: Path, host: str, is_embedded: bool, is_due: bool
) -> None:
    runtime = RuntimeDir(tmp_path, 1, owns_base=False)
    redis = embedded_redis.EmbeddedRedis((), tmp_path / "redis.sock") if is_embedded else None
    config = master_config(runtime, settings=Settings(advertised_host=host), redis=redis)
    loop = Loop()
    child = ForwarderChild(loop, config, ChildFileWriter(loop, config))
    assert child.is_due is is_due
    if not is_due:
        child.start_if_due()
        assert child.pid is None

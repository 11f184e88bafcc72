"""The directories of sessions' files (session_directories.cjs), where the files of one cannot be kept."""

import json
import subprocess
from pathlib import Path
from typing import Any

from playwright._impl._driver import compute_driver_executable

from pwgrid.worker.browser.launch import LAUNCHER

NODE, _ = compute_driver_executable()


def run(script: str, *arguments: Any) -> Any:
    """What the script returns, as JSON, where SessionDirectories is known."""
    module = json.dumps(str(LAUNCHER.with_name("clients") / "session_directories.cjs"))
    whole = (
        f"const {{ SessionDirectories }} = require({module});"
        f"const fs = require('node:fs'), path = require('node:path'), given = {json.dumps(arguments)};"
        f"(async () => {{ {script} }})().then(result => console.log(JSON.stringify(result)));"
    )
    done = subprocess.run([NODE, "-e", whole], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_a_directory_whose_files_cannot_be_moved_is_emptied_and_used_again(tmp_path: Path) -> None:
    """As with the first version of Landlock, which lets nothing be moved to another directory."""
    parent, kept = tmp_path / "parent", tmp_path / "kept"
    (parent / "one").mkdir(parents=True)
    found = run(
        """
        const directories = new SessionDirectories(given[0]);
        const one = directories.take();
        fs.writeFileSync(path.join(one, 'download.txt'), 'x');
        const { renameSync } = fs;
        fs.renameSync = (from, to) => {
          if (path.dirname(from) !== path.dirname(to))
            throw Object.assign(new Error('no move'), { code: 'EXDEV' });
          renameSync(from, to);
        };
        const error = await directories.giveBack(one, given[1]).then(() => '', failed => failed.code);
        return [error, directories.free.length, fs.readdirSync(directories.take())];
        """,
        str(parent),
        str(kept),
    )
    assert found == ["EXDEV", 1, []]
    assert [*tmp_path.iterdir()] == [parent]

"""Why a browser did not start, in one sentence; what Playwright and browsers say here is what they said in fact."""

import pytest

from pwgrid.common.launch_failure import MAX_CHARACTERS, BrowserLaunchError, why, without_places

CALL_LOG = """
<launching> /usr/lib/chromium/chromium --no-sandbox --user-data-dir=/run/pwgrid/8080/w/0a1b2c3d/tmp/profile-x
<launched> pid=22433
"""


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "Failed to launch chromium because executable doesn't exist at /opt/chromium Failed to launch browser.",
            "its executable is not there: run `pwgrid setup`",
        ),
        (
            "Failed to launch: Error: spawn /opt/chromium EACCES Failed to launch browser." + CALL_LOG,
            "its executable may not be run by the grid's user",
        ),
        (
            "Failed to launch the browser process.\nBrowser logs:\n"
            + CALL_LOG
            + "[pid=22433][err] /opt/chromium: error "
            "while loading shared libraries: libnss3.so: cannot open shared object file: No such file or directory",
            "the library libnss3.so is missing: run `playwright install-deps` as root",
        ),
        (
            "Protocol error (Browser.getVersion): Internal server error, session closed. Failed to launch browser."
            + CALL_LOG
            + "[pid=22433][err] [22433:22433:1122/093148.1:ERROR:zygote_host_impl_linux.cc(101)] Running as root "
            "without --no-sandbox is not supported. See https://crbug.com/638180.",
            "the sandbox needs an ordinary user: set CHROMIUM_SANDBOX=false or do not run as root",
        ),
        (
            "Failed to launch the browser process." + CALL_LOG + "[pid=22433][err] \n"
            "[pid=22433][err] [22433:1:1122/091.2:ERROR:process_singleton.cc(22)] Failed to create "
            "/run/pwgrid/8080/w/0a1b2c3d/tmp/SingletonLock: No space left on device (28)",
            "Failed to create SingletonLock: No space left on device (28)",
        ),
        (
            "Protocol error (Browser.getVersion): Internal server error, session closed. Failed to launch browser."
            + CALL_LOG
            + "[pid=22433] <process did exit: exitCode=3, signal=null>",
            "it ended with exit code 3",
        ),
        (
            "Failed to launch the browser process." + CALL_LOG + "[pid=22433] <process did exit: exitCode=null, "
            "signal=SIGSEGV>",
            "it was ended by SIGSEGV",
        ),
        (
            "Protocol error (network.addDataCollector): unknown command Failed to launch browser." + CALL_LOG,
            "Protocol error (network.addDataCollector): unknown command",
        ),
        (
            "Protocol error (network.addDataCollector): unknown command\nMessage: network.addDataCollector Failed to "
            "launch browser." + CALL_LOG + "[pid=22433][err] *** You are running in headless mode.",
            "Protocol error (network.addDataCollector): unknown command",
        ),
        (
            "Failed to launch the browser process.\nBrowser logs:\n"
            + CALL_LOG
            + "[pid=22433][err] XPCOMGlueLoad error "
            "for file /opt/firefox/libmozgtk.so:\n[pid=22433][err] libgtk-3.so.0: cannot open shared object file: No "
            "such file or directory",
            "the library libgtk-3.so.0 is missing: run `playwright install-deps` as root",
        ),
        (
            "/opt/launcher.cjs:12\n  foo\n  ^\n\nTypeError: x is no function\n    at /opt/x.js:1",
            "TypeError: x is no function",
        ),
        ("Missing X server or $DISPLAY", "there is no display: set HEADLESS=true or start it under xvfb-run"),
        ("not ready within 60 s\n", "not ready within 60 s"),
    ],
)
def test_the_sentence_is_what_tells_most_without_paths_and_pids(said: str, sentence: str) -> None:
    assert why(said) == sentence
    assert str(BrowserLaunchError(said, "chromium")) == f"chromium did not start: {sentence}"
    assert BrowserLaunchError(said).evidence == said


def test_an_error_without_a_word_says_that() -> None:
    assert str(BrowserLaunchError(" \n", "firefox")) == "firefox did not start: it gave no reason"


def test_a_sentence_is_never_longer_than_a_line() -> None:
    sentence = why("word " * 1000 + "\nmore")
    assert len(sentence) == MAX_CHARACTERS
    assert sentence.endswith(" …")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no Redis at unix:///run/pwgrid/8080/redis.sock within 5 s", "no Redis at redis.sock within 5 s"),
        ("no Redis at redis://cache:6379/0 within 5 s", "no Redis at redis://cache:6379/0 within 5 s"),
        ("cannot open '/tmp/pwgrid-0/8080/w/a/x': full (pid 12)", "cannot open 'x': full ()"),
        (
            "use chromium/firefox and see https://example.com/a/b",
            "use chromium/firefox and see https://example.com/a/b",
        ),
    ],
)
def test_who_is_not_on_this_host_hears_of_no_path_or_pid_in_it(text: str, shown: str) -> None:
    assert without_places(text) == shown

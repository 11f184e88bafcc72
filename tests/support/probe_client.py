"""A program: a Playwright client in Python that tries what a grid gives. Its arguments: endpoint, endpoint for an own
browser, directory, "video" if there is an ffmpeg. Writes what it found as JSON. PYTHONPATH says which version it is."""

import json
import sys
from pathlib import Path

from playwright.sync_api import Error, sync_playwright


def main(endpoint: str, own: str, place: str, video: str) -> dict[str, object]:
    found: dict[str, object] = {}
    directory = Path(place)
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect(endpoint, timeout=60_000)
        context = browser.new_context(record_video_dir=str(directory) if video else None)
        other = browser.new_context()
        found["contexts"] = len(browser.contexts)
        context.tracing.start(snapshots=True, screenshots=True)
        page = context.new_page()
        page.set_content('<title>probe</title><a download="hello.txt" href="data:text/plain,hello">get</a>')
        found["title"] = page.title()
        with page.expect_download() as coming:
            page.click("a")
        coming.value.save_as(directory / "download.txt")
        found["download"] = (directory / "download.txt").read_text()
        result = context.new_cdp_session(page).send("Runtime.evaluate", {"expression": "6 * 7"})
        found["cdp"] = result["result"]["value"]
        try:
            page.goto("file:///etc/passwd")
            found["fileUrl"] = "" if "root:" in page.content() else "empty"
        except Error as error:
            found["fileUrl"] = error.message
        context.tracing.stop(path=directory / "trace.zip")
        found["trace"] = (directory / "trace.zip").stat().st_size > 1000
        context.close()
        if video:
            assert page.video is not None
            page.video.save_as(directory / "video.webm")
            found["video"] = (directory / "video.webm").stat().st_size > 0
        other.close()
        browser.close()
        alone = playwright.chromium.connect(own, timeout=60_000)
        only = alone.new_context().new_page()
        only.set_content("<title>own</title>")
        found["own"] = only.title()
        alone.close()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))

"""The switches that clients may give to browsers of their own where ALLOWED_BROWSER_ARGS names no others."""

from typing import Final

ALLOWED_BROWSER_ARGS: Final = (
    # Language, window, look and sound.
    *("--lang", "--accept-lang", "--user-agent", "--window-size", "--window-position", "--start-maximized"),
    *("--start-fullscreen", "--kiosk", "--force-device-scale-factor", "--high-dpi-support", "--hide-scrollbars"),
    *("--force-color-profile", "--force-dark-mode", "--force-prefers-reduced-motion", "--font-render-hinting"),
    *("--disable-font-subpixel-positioning", "--disable-lcd-text", "--touch-events", "--mute-audio"),
    *("--autoplay-policy", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
    # What pages can do.
    *("--enable-features", "--disable-features", "--enable-blink-features", "--disable-blink-features"),
    *("--blink-settings", "--enable-experimental-web-platform-features", "--enable-precise-memory-info"),
    *("--ignore-certificate-errors", "--allow-insecure-localhost", "--allow-running-insecure-content"),
    *("--unsafely-treat-insecure-origin-as-secure", "--deny-permission-prompts", "--disable-notifications"),
    *("--disable-popup-blocking", "--disable-translate", "--host-resolver-rules", "--disable-http2", "--disable-quic"),
    # Graphics.
    *("--disable-gpu", "--use-gl", "--use-angle", "--enable-webgl", "--ignore-gpu-blocklist"),
    *("--enable-unsafe-swiftshader", "--disable-accelerated-2d-canvas", "--disable-software-rasterizer"),
    # What many write, and what changes little.
    *("--incognito", "--no-first-run", "--no-default-browser-check", "--disable-infobars", "--disable-extensions"),
    *("--disable-default-apps", "--disable-sync", "--disable-background-networking", "--disable-component-update"),
    *("--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows"),
    *("--disable-renderer-backgrounding", "--disable-ipc-flooding-protection", "--disable-hang-monitor"),
    *("--disable-search-engine-choice-screen", "--disable-client-side-phishing-detection", "--enable-automation"),
    *("--password-store", "--use-mock-keychain", "--test-type", "--metrics-recording-only"),
)
"""None of these is there to start another program, to open a port, or to read or write a file of the host."""

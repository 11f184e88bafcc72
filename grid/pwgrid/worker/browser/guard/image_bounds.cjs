// Comparisons of screenshots (expectScreenshot): Node decodes and compares whole images, pixel by pixel, and pads both to the larger sides.
'use strict';

const { AsyncLocalStorage } = require('node:async_hooks');

const MOST_PIXELS = 16_000_000;
const MOST_PIXELS_SSIM = 4_000_000; // for the comparator `ssim-cie94`, which takes four times as long

const PNG = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1');
const NO_SIZE = new Set([0xc4, 0xc8, 0xcc]); // markers of JPEG between those that tell a size

const comparing = new AsyncLocalStorage(); // the Comparison that a screenshot is for

class Comparison {
  constructor({ expected, comparator }) {
    this.most = comparator === 'ssim-cie94' ? MOST_PIXELS_SSIM : MOST_PIXELS;
    this.width = this.height = 0;
    this.refused = new Promise((_, reject) => { this.refuse = reject; });
    this.refused.catch(() => {}); // where nobody waits for it any more
    if (expected)
      this.add(expected);
  }

  // Throws when this image makes it too large.
  add(image) {
    const { width, height } = sizeOf(image);
    this.width = Math.max(this.width, width);
    this.height = Math.max(this.height, height);
    if (this.width * this.height <= this.most)
      return;
    const error = new Error(`a comparison of ${this.width} by ${this.height} pixels is too large for the grid, which takes ${this.most}`);
    this.refuse(error);
    throw error;
  }
}

// Of a PNG, JPEG or WebP, as its head says; of anything else nothing, and its decoder refuses it.
function sizeOf(image) {
  if (image.length >= 24 && image.subarray(0, 8).equals(PNG))
    return { width: image.readUInt32BE(16), height: image.readUInt32BE(20) };
  if (image.length >= 30 && image.toString('latin1', 8, 12) === 'WEBP')
    return sizeOfWebp(image);
  for (let at = 2; image[0] === 0xff && image[1] === 0xd8 && at + 9 <= image.length;) {
    const marker = image[at + 1];
    if (marker >= 0xc0 && marker <= 0xcf && !NO_SIZE.has(marker))
      return { width: image.readUInt16BE(at + 7), height: image.readUInt16BE(at + 5) };
    at += marker === 0xff ? 1 : 2 + image.readUInt16BE(at + 2);
  }
  return { width: 0, height: 0 };
}

function sizeOfWebp(image) {
  switch (image.toString('latin1', 12, 16)) {
    case 'VP8X':
      return { width: 1 + image.readUIntLE(24, 3), height: 1 + image.readUIntLE(27, 3) };
    case 'VP8L': {
      const bits = image.readUInt32LE(21);
      return { width: 1 + (bits & 0x3fff), height: 1 + (bits >>> 14 & 0x3fff) };
    }
    default:
      return { width: image.readUInt16LE(26) & 0x3fff, height: image.readUInt16LE(28) & 0x3fff };
  }
}

// Bounds the comparisons of a client's page, by its dispatcher.
function boundComparisons(dispatcher) {
  const { expectScreenshot } = dispatcher, { screenshotter } = dispatcher._object;
  if (!expectScreenshot || !screenshotter)
    return;
  dispatcher.expectScreenshot = async (params, progress) => {
    const comparison = new Comparison(params);
    return await Promise.race([comparison.refused, comparing.run(comparison, () => expectScreenshot.call(dispatcher, params, progress))]);
  };
  for (const name of ['screenshotPage', 'screenshotElement']) {
    const take = screenshotter[name];
    screenshotter[name] = async (...args) => {
      const image = await take.apply(screenshotter, args);
      comparing.getStore()?.add(image);
      return image;
    };
  }
}

module.exports = { boundComparisons, Comparison, sizeOf };

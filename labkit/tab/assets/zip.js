// Zip files of texts: enough to carry work to a machine and back. Written without compression.

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});
const crc32 = (bytes) => ~bytes.reduce((sum, byte) => CRC[(sum ^ byte) & 255] ^ (sum >>> 8), ~0) >>> 0;
const MOST = 4 << 20; // bytes of one file: no lab file has a hundredth of it

/** {path: text} as a Blob. */
export function zipped(texts) {
  const parts = [], entries = [];
  let offset = 0;
  for (const [path, text] of Object.entries(texts)) {
    const name = new TextEncoder().encode(path), data = new TextEncoder().encode(text);
    // version 2.0, names in UTF-8, stored; no time of day, but a date that every unzip takes: 1980-01-01
    const about = [20, 0x800, 0, 0, 33].map((n) => u16(n)).concat(u32(crc32(data)), u32(data.length), u32(data.length), u16(name.length), u16(0));
    parts.push(u32(0x04034b50), ...about, name, data);
    entries.push(u32(0x02014b50), u16(20), ...about, u16(0), u16(0), u16(0), u32(0), u32(offset), name);
    offset += 30 + name.length + data.length;
  }
  const count = Object.keys(texts).length;
  const size = entries.reduce((sum, part) => sum + part.length, 0);
  const end = [u32(0x06054b50), u16(0), u16(0), u16(count), u16(count), u32(size), u32(offset), u16(0)];
  return new Blob([...parts, ...entries, ...end], { type: "application/zip" });
}

/**
 * The texts of a zip file, {path: text}.
 * @throws Error: it is no zip, is encrypted, or holds too much.
 */
export async function unzipped(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer()), view = new DataView(bytes.buffer);
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new Error("this is no zip file");
  const texts = {};
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (at + 46 > bytes.length || view.getUint32(at, true) !== 0x02014b50) throw new Error("this zip file is damaged");
    const [flags, method] = [view.getUint16(at + 8, true), view.getUint16(at + 10, true)];
    const [packed, size, name, extra, comment] = [
      view.getUint32(at + 20, true), view.getUint32(at + 24, true),
      view.getUint16(at + 28, true), view.getUint16(at + 30, true), view.getUint16(at + 32, true)];
    const path = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + name));
    const local = view.getUint32(at + 42, true);
    if (flags & 1) throw new Error(`${path} is encrypted`);
    if (size > MOST) throw new Error(`${path} has ${size} bytes; the limit is ${MOST}`);
    if (!path.endsWith("/")) {
      const begin = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
      texts[path] = new TextDecoder("utf-8", { fatal: true }).decode(await inflated(bytes.slice(begin, begin + packed), method));
    }
    at += 46 + name + extra + comment;
  }
  return texts;
}

async function inflated(data, method) {
  if (method === 0) return data;
  if (method !== 8) throw new Error(`this zip file is packed in a way (${method}) that is not known here`);
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const u16 = (n) => Uint8Array.of(n & 255, n >>> 8);
const u32 = (n) => Uint8Array.of(n & 255, (n >>> 8) & 255, (n >>> 16) & 255, n >>> 24);

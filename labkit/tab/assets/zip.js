// Zip files of texts: enough to carry work to a machine and back. Written without compression.

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});
const crc32 = (bytes) => ~bytes.reduce((sum, byte) => CRC[(sum ^ byte) & 255] ^ (sum >>> 8), ~0) >>> 0;
const MOST = 4 << 20; // bytes of one file: no lab file has a hundredth of it
const MOST_OF_ALL = 32 << 20; // bytes of a zip file

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

/** What makes a file none that can be taken in; the message says it. */
class Refused extends Error {}
const DAMAGED = "it is damaged, or is no zip file";

/**
 * The texts of a zip file.
 * @param wanted says of a path whether its text is read.
 * @returns {texts: {path: text}, left: [path, …]}: what is wanted, and the names of the others.
 * @throws Error: it is no zip, is damaged, or holds too much; the message says which.
 */
export async function unzipped(blob, wanted) {
  if (blob.size > MOST_OF_ALL) throw new Refused(`it has ${blob.size} bytes; the limit is ${MOST_OF_ALL}`);
  try {
    return await read(new Uint8Array(await blob.arrayBuffer()), wanted);
  } catch (error) {
    throw error instanceof Refused ? error : new Refused(DAMAGED); // offsets that lead nowhere, and the like
  }
}

async function read(bytes, wanted) {
  const view = new DataView(bytes.buffer), texts = {}, left = [];
  let end = bytes.length - 22;
  const first = Math.max(0, end - 65535); // the end's comment is no longer
  while (end >= first && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < first) throw new Refused(DAMAGED);
  let at = view.getUint32(end + 16, true);
  for (let count = view.getUint16(end + 10, true); count > 0; count--) {
    if (view.getUint32(at, true) !== 0x02014b50) throw new Refused(DAMAGED);
    const [flags, method, crc] = [view.getUint16(at + 8, true), view.getUint16(at + 10, true), view.getUint32(at + 16, true)];
    const [packed, size, name, extra, comment] = [
      view.getUint32(at + 20, true), view.getUint32(at + 24, true),
      view.getUint16(at + 28, true), view.getUint16(at + 30, true), view.getUint16(at + 32, true)];
    const path = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + name));
    const local = view.getUint32(at + 42, true);
    at += 46 + name + extra + comment;
    if (!wanted(path)) {
      if (!path.endsWith("/")) left.push(path);
      continue;
    }
    if (flags & 1) throw new Refused(`${path} in it is encrypted`);
    if (size > MOST) throw new Refused(`${path} in it has ${size} bytes; the limit is ${MOST}`);
    const begin = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const data = await inflated(bytes.slice(begin, begin + packed), method, size, path);
    if (data.length !== size || crc32(data) !== crc) throw new Refused(DAMAGED);
    texts[path] = decoded(data, path);
  }
  return { texts, left };
}

function decoded(data, path) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    throw new Refused(`${path} in it is no text in UTF-8`);
  }
}

/** @param size what the zip file says of it: more is not unpacked. */
async function inflated(data, method, size, path) {
  if (method === 0) return data;
  if (method !== 8) throw new Refused(`${path} in it is packed in a way (${method}) that is not known here`);
  const reader = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  let length = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    length += part.value.length;
    if (length > size) throw new Refused(DAMAGED);
    parts.push(part.value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

const u16 = (n) => Uint8Array.of(n & 255, n >>> 8);
const u32 = (n) => Uint8Array.of(n & 255, (n >>> 8) & 255, (n >>> 16) & 255, n >>> 24);

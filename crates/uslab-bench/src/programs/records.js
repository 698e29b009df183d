// What a server written in JavaScript keeps outside its own heap, and what it builds within: JSON
// to and from buffers, maps of records, compressed bodies. V8's heap comes from mmap; buffers and
// the tables of compressors come from malloc. It fails if a record was lost on the way.
"use strict";
const zlib = require("zlib");
const n = Number(process.argv[2]);

function record(i) {
  const tags = [3, 7, 31].map((k) => "t" + (i % k));
  return { id: i, name: "record-" + i, tags, nested: { a: { b: [i, { c: i / 2 }] } } };
}

function round() {
  const bodies = [];
  for (let i = 0; i < n; i++) {
    const text = JSON.stringify(record(i));
    bodies.push({ length: text.length, body: Buffer.from(text.repeat(1 + (i % 16) * 2)) });
  }
  // Every second goes first, so that what stays lies scattered.
  const kept = bodies.filter((_, i) => i % 2 === 0);
  bodies.length = 0;
  const by_name = new Map();
  let bytes = 0;
  kept.forEach(({ length, body }, i) => {
    const copy = Buffer.allocUnsafeSlow(body.length);
    body.copy(copy);
    const one = JSON.parse(copy.toString("utf8", 0, length));
    by_name.set(one.name, { one, copy });
    if (i % 8 === 0) bytes += zlib.gunzipSync(zlib.gzipSync(copy, { level: 1 })).length - copy.length;
  });
  let sum = 0;
  for (const { one } of by_name.values()) sum += one.id;
  const half = Math.ceil(n / 2);
  if (bytes !== 0 || by_name.size !== half || sum !== half * (half - 1)) {
    throw new Error("records were lost");
  }
}

for (let i = 0; i < 3; i++) round();

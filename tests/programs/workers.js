// The same work in child processes, in worker threads and in the main thread; all results must be
// equal.
'use strict';
const { fork } = require('child_process');
const { createHash } = require('crypto');
const zlib = require('zlib');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

const PROCESSES = 6;
const THREADS = 6;
const ROUNDS = 40;

// Buffers outside V8's heap (malloc), compression state (malloc, large), strings, maps and JSON.
function work(seed) {
  const hash = createHash('sha256');
  let state = seed >>> 0;
  const random = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0);
  for (let round = 0; round < ROUNDS; round++) {
    const buffer = Buffer.alloc(1000 + random() % 200000);
    for (let i = 0; i < buffer.length; i += 61) buffer[i] = random();
    const packed = zlib.deflateSync(buffer, { level: 1 + round % 9 });
    if (!zlib.inflateSync(packed).equals(buffer)) throw new Error('inflate(deflate(x)) is not x');
    const map = new Map();
    for (let i = 0; i < 500; i++) map.set(`key ${random() % 1000}`, { i, list: [random(), String(random())] });
    const copy = JSON.parse(JSON.stringify([...map]));
    hash.update(packed).update(JSON.stringify(copy));
    if (round % 10 === 0) hash.update(zlib.brotliCompressSync(buffer.subarray(0, 20000)));
  }
  return hash.digest('hex');
}

function inProcess(seed) {
  return new Promise((resolve, reject) => {
    const child = fork(__filename, ['child']);
    let result;
    child.on('message', (message) => { result = message; });
    child.on('error', reject);
    child.on('exit', (code, signal) => {
      if (code === 0) resolve(result);
      else reject(new Error(`a child ended with ${code ?? signal}`));
    });
    child.send(seed);
  });
}

function inThread(seed) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(__filename, { workerData: seed });
    let result;
    worker.on('message', (message) => { result = message; });
    worker.on('error', reject);
    worker.on('exit', (code) => (code === 0 ? resolve(result) : reject(new Error(`a thread ended with ${code}`))));
  });
}

async function main() {
  const seeds = Array.from({ length: PROCESSES + THREADS }, (_, i) => 12345 + i % 6);
  const running = seeds.map((seed, i) => (i < PROCESSES ? inProcess(seed) : inThread(seed)));
  const wanted = seeds.map((seed) => work(seed));
  const got = await Promise.all(running);
  const agree = got.filter((result, i) => result === wanted[i]).length;
  console.log(`${agree} results agree, all of them: ${createHash('sha256').update(got.join()).digest('hex')}`);
  if (agree !== seeds.length) process.exitCode = 1;
}

if (!isMainThread) {
  parentPort.postMessage(work(workerData));
} else if (process.argv[2] === 'child') {
  process.once('message', (seed) => process.send(work(seed), () => process.disconnect()));
} else {
  main();
}

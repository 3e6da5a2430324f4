# needs: node npm
version() { echo "node $(node --version), npm $(npm --version)"; }
try() {
	mkdir -p dependency/package && cd dependency
	echo '{"name":"left","version":"1.0.0","main":"index.js"}' >package/package.json
	echo 'module.exports = () => "from a tarball"' >package/index.js
	tar czf ../left-1.0.0.tgz package && cd ..
	echo '{"name":"app","version":"1.0.0","private":true}' >package.json
	npm install --no-audit --no-fund --offline ./left-1.0.0.tgz >/dev/null
	equal "$(node -e 'console.log(require("left")())')" "from a tarball"
	cat >all.mjs <<'JS'
import { Worker, isMainThread, parentPort } from "node:worker_threads";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
if (!isMainThread) { parentPort.postMessage(6 * 7); } else {
  const bytes = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 7, 1, 96, 2, 127, 127, 1, 127, 3, 2, 1, 0, 7, 7, 1, 3, 97, 100, 100, 0, 0, 10, 9, 1, 7, 0, 32, 0, 32, 1, 106, 11);
  const { instance } = await WebAssembly.instantiate(bytes);
  if (instance.exports.add(2, 3) !== 5) throw new Error("wasm");
  new WebAssembly.Memory({ initial: 1, maximum: 1024, shared: true });
  const answer = await new Promise((done, fail) => new Worker(fileURLToPath(import.meta.url)).on("message", done).on("error", fail));
  if (answer !== 42) throw new Error("worker");
  const server = createServer((req, res) => res.end("served " + req.url)).listen(0, "127.0.0.1");
  await new Promise((done) => server.once("listening", done));
  const text = await (await fetch(`http://127.0.0.1:${server.address().port}/here`)).text();
  server.close();
  console.log(text);
}
JS
	equal "$(node all.mjs)" "served /here"
}

# needs: python3
version() { python3 --version; }
try() {
	python3 -m venv env && . env/bin/activate
	mkdir -p wheel/greeting wheel/greeting-1.0.dist-info
	echo 'def hello(): return "hello from a wheel"' >wheel/greeting/__init__.py
	printf 'Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n' >wheel/greeting-1.0.dist-info/METADATA
	printf 'Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n' >wheel/greeting-1.0.dist-info/WHEEL
	printf 'greeting/__init__.py,,\ngreeting-1.0.dist-info/METADATA,,\ngreeting-1.0.dist-info/WHEEL,,\ngreeting-1.0.dist-info/RECORD,,\n' >wheel/greeting-1.0.dist-info/RECORD
	(cd wheel && python3 -m zipfile -c ../greeting-1.0-py3-none-any.whl greeting greeting-1.0.dist-info)
	pip install --quiet --no-index --disable-pip-version-check ./greeting-1.0-py3-none-any.whl
	equal "$(python3 -c 'import greeting; print(greeting.hello())')" "hello from a wheel"
	cat >several.py <<'PY'
import multiprocessing, sqlite3, ssl, tempfile, threading
def square(n): return n * n
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(4) as pool:
            assert pool.map(square, range(50)) == [n * n for n in range(50)], method
    queue = multiprocessing.Queue()
    queue.put("shared"); assert queue.get(timeout=10) == "shared"
    value = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20) if hasattr(multiprocessing, "shared_memory") else None
    with sqlite3.connect("data.db") as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table t (n integer)")
        db.executemany("insert into t values (?)", [(n,) for n in range(1000)])
        assert db.execute("select sum(n) from t").fetchone() == (499500,)
    context = ssl.create_default_context()
    assert context.verify_mode == ssl.CERT_REQUIRED and ssl.OPENSSL_VERSION
    print("all right")
PY
	equal "$(python3 several.py)" "all right"
}

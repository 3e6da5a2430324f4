# needs: cargo rustc gcc
version() { echo "$(cargo --version), $(rustc --version)"; }
try() {
	cargo init --quiet --vcs none --name sums .
	cat >src/main.rs <<'RS'
use std::{net::TcpListener, thread};
fn main() {
    let parts: Vec<_> = (0..4).map(|k| thread::spawn(move || (0..1000u64).map(|n| n * k).sum::<u64>())).collect();
    let total: u64 = parts.into_iter().map(|p| p.join().unwrap()).sum();
    TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{total}");
}
#[test]
fn adds() { assert_eq!(2 + 2, 4); }
RS
	cargo build --quiet --offline && equal "$(./target/debug/sums)" 2997000
	cargo test --quiet --offline >/dev/null
}

# needs: psql
version() { psql --version; }
try() {
	PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -1):$PATH
	initdb --no-sync --auth trust --encoding UTF8 data >/dev/null
	pg_ctl -D data -w -o "-k $PWD -p 5433 -c listen_addresses=127.0.0.1 -c fsync=off" -l log start >/dev/null
	for host in 127.0.0.1 "$PWD"; do
		equal "$(psql -h "$host" -p 5433 -At -c 'select sum(n) from generate_series(1, 1000) n' postgres)" 500500
	done
	psql -q -h 127.0.0.1 -p 5433 -c 'create table t as select n from generate_series(1, 100000) n; create index on t (n); analyze t' postgres
	equal "$(psql -h 127.0.0.1 -p 5433 -At -c 'select current_user' postgres)" user
	pg_ctl -D data -w -m fast stop >/dev/null
}

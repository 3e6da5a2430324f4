# needs: gdb strace gcc
version() { echo "$(gdb --version | head -1), $(strace --version | head -1)"; }
try() {
	printf '#include <stdio.h>\nint twice(int n) { return 2 * n; }\nint main(void) { printf("%%d\\n", twice(21)); return 0; }\n' >prog.c
	gcc -g -O0 -o prog prog.c
	gdb -q -batch -ex 'break twice' -ex run -ex 'print n' -ex 'set var n = 4' -ex finish -ex continue ./prog >gdb.out 2>&1
	grep -q '\$1 = 21' gdb.out && grep -q '^8$' gdb.out
	strace -f -o trace -e trace=write,clone,execve sh -c './prog; (true)' >/dev/null
	grep -q 'write(1, "42' trace
	# Of a process that runs already, as long as it is a child of the same user's.
	sleep 30 & pid=$!
	gdb -q -batch -p $pid -ex 'info proc' >attach.out 2>&1 && grep -q "process $pid" attach.out
	kill $pid
}

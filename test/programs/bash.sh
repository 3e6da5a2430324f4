# needs: bash
version() { bash --version | head -1; }
try() {
	out=$(bash -lc 'shopt -q login_shell && echo "$HOME $PWD $USER $(id -un)"; type -t ls; printf "%s\n" {1..3} | wc -l; umask')
	equal "$out" "/home/user $PWD user user
file
3
0022"
	bash -lc 'exec 3<>/dev/tcp/127.0.0.1/1' 2>&1 | grep -q refused
}

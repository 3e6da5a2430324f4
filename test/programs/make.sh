# needs: gcc make
version() { echo "$(gcc --version | head -1), $(make --version | head -1)"; }
try() {
	for n in 1 2 3 4; do echo "int f$n(int x) { return x + $n; }" >f$n.c; done
	cat >main.c <<'C'
#include <pthread.h>
#include <stdio.h>
int f1(int), f2(int), f3(int), f4(int);
static void *run(void *x) { *(int *)x = f4(f3(f2(f1(0)))); return 0; }
int main(void) { int n; pthread_t t; pthread_create(&t, 0, run, &n); pthread_join(t, 0); printf("%d\n", n); return 0; }
C
	printf 'all: prog\nprog: main.o f1.o f2.o f3.o f4.o\n\tgcc -pthread -o $@ $^\n%%.o: %%.c\n\tgcc -O2 -Wall -c $<\n' >Makefile
	make -j4 >/dev/null && equal "$(./prog)" 10
	gcc -fsanitize=address,undefined -o checked main.c f?.c -pthread && equal "$(./checked)" 10
}

# needs: go gcc
version() { go version; }
try() {
	export GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local GOCACHE=$PWD/cache
	cat >go.mod <<'MOD'
module example.test/sum

go 1.21
MOD
	cat >sum.go <<'GO'
package main

import ("fmt"; "net/http"; "sync")

func sum(n int) (total int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := 0; i <= n; i++ {
		all.Add(1)
		go func(i int) { defer all.Done(); mu.Lock(); total += i; mu.Unlock() }(i)
	}
	all.Wait()
	return total
}

func main() { fmt.Println(sum(100), http.StatusText(200)) }
GO
	cat >sum_test.go <<'GO'
package main

import "testing"

func TestSum(t *testing.T) {
	if sum(10) != 55 {
		t.Fatal(sum(10))
	}
}
GO
	go build -o sum . && equal "$(./sum)" "5050 OK"
	go vet . && go test -race . | grep -q '^ok'
}

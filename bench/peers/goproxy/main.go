// Command goproxy is github.com/elazarl/goproxy as its manual starts it, for
// bench: it listens at the address given, on loopback.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/elazarl/goproxy"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: goproxy ADDRESS")
		os.Exit(2)
	}
	server := &http.Server{Addr: os.Args[1], Handler: goproxy.NewProxyHttpServer(), ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintln(os.Stderr, "goproxy:", server.ListenAndServe())
	os.Exit(1)
}

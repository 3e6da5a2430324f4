// Package gate is the way out of a sandbox. It serves the connections that a
// sandbox opened, as an HTTP proxy (plain requests and CONNECT) and as SOCKS5
// (CONNECT), told apart by their first byte, and lets through what the rules of
// package egress allow.
//
// There is one decision for all ways in, over one immutable set of rules. Names
// are decided before anything is resolved; every address is screened, and the
// screened address is the one that is dialled. What goes through a tunnel is TLS
// for the very name that the tunnel is for, unless its rule says tcp; through a
// tunnel to port 80 go plain HTTP requests, each judged again. TLS to a host with
// a credential is ended here, each request inside it is judged, and the
// credential goes on last.
//
// Every request leaves one decision in the audit before its first byte goes out,
// and every flow that was allowed leaves its end. What cannot be recorded is
// denied.
//
// A Gate needs no sandbox: ListenUnix and ListenLoopback serve a container that a
// host brings by itself.
package gate

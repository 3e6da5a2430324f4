// Package broker puts credentials on requests that leave a sandbox, so that the
// sandbox never has them. It owns the sandbox's certificate authority, which ends
// TLS for the hosts with a credential and for no other; the rules of what a
// credential may be used for; and the redaction of what comes back.
//
// The secret is the last thing that is put on a request, and only on one that
// goes out by https. Redaction is the second line, not the first: it finds the
// secret as it is and in the ways of writing it that servers use when they show a
// request, and a server that wants to give a secret away in a way of its own can.
package broker

package agent

import (
	"net/http"
)

// mount adds the session's routes to the data plane. They only read.
func (s *session) mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /envs", func(w http.ResponseWriter, _ *http.Request) {
		envs := s.environment(nil)
		if envs == nil {
			envs = map[string]string{}
		}
		w.Header().Set("Cache-Control", "no-store")
		answer(w, http.StatusOK, envs)
	})
}

// mountRefusals gives what is not there envd's form of an error.
func mountRefusals(mux *http.ServeMux) {
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answerError(w, http.StatusNotFound, "no such route")
	})
	for path, methods := range map[string]string{
		"/health": "GET, HEAD", "/envs": "GET, HEAD", "/metrics": "GET, HEAD", "/files": "GET, HEAD, POST", "/files/compose": "POST",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", methods)
			answerError(w, http.StatusMethodNotAllowed, "the route takes "+methods)
		})
	}
}

// withOrigins lets pages of any origin use the data plane where something
// forwards it to a browser. No cookie and no other credential that a browser adds
// by itself counts here: a page has to have the token.
func withOrigins(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		if r.Header.Get("Origin") != "" {
			header.Set("Access-Control-Allow-Origin", "*")
			header.Set("Access-Control-Expose-Headers", "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, Cache-Control, X-Content-Type-Options, Content-Encoding, Connect-Content-Encoding")
		}
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		header.Set("Access-Control-Allow-Origin", "*")
		header.Set("Access-Control-Allow-Methods", "HEAD, GET, POST, PUT, PATCH, DELETE")
		// Authorization is not in a star, by the standard; the header asked for is.
		if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
			header.Set("Access-Control-Allow-Headers", asked)
		}
		header.Set("Access-Control-Max-Age", "7200")
		header.Add("Vary", "Access-Control-Request-Headers")
		w.WriteHeader(http.StatusNoContent)
	})
}

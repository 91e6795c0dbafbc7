package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// serveHTTP answers health checks on l until ctx ends.
//
//	/livez   200 while the supervising loop turns, nothing else
//	/readyz  200 while etcd serves and we are owner, else 503 with the reason
//	/status  the Status as JSON
//	/metrics the same and more for Prometheus
func (s *Supervisor) serveHTTP(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", s.livez)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /status", s.statusJSON)
	metrics := sync.OnceValue(s.metrics.handler) // made at the first scrape
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { metrics().ServeHTTP(w, r) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health checks: %w", err)
	}
	return nil
}

// livez asks the loop to answer: a loop that is stuck for longer than the caller's patience is not alive.
func (s *Supervisor) livez(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	select {
	case <-s.pings:
		fmt.Fprintln(w, "ok")
	case <-ctx.Done():
		http.Error(w, "the supervising loop does not turn", http.StatusServiceUnavailable)
	}
}

func (s *Supervisor) readyz(w http.ResponseWriter, r *http.Request) {
	st := s.board.read()
	if !st.Ready {
		why := st.Why
		if why == "" {
			why = "phase " + st.Phase.String()
		}
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	if s.cfg.Serving != nil {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := s.cfg.Serving(ctx); err != nil {
			http.Error(w, "etcd does not answer: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	fmt.Fprintln(w, "ok")
}

func (s *Supervisor) statusJSON(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s.board.read()); err != nil {
		s.log.Debug().Err(err).Msg("status not sent")
	}
}

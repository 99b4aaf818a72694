package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/healthz"
)

// healthCheck is the check of the keyspace behind /readyz and /healthz. Anybody may read
// these pages, so upstream withholds the reasons of failures. Administrators get this one,
// and those of the checks of types and of the disk.
type healthCheck struct {
	storage *keyspaceStorage
	types   *ownTypes
	space   *spaceCheck
	reason  atomic.Pointer[string]
}

const healthCheckName = "keyspace"

// check reads from all parts of the database. The guarded client's errors are for clients of
// the API; these have the cause and the remedy.
func (h *healthCheck) check() healthz.HealthChecker {
	return healthz.NamedCheck(healthCheckName, func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
		defer cancel()
		err := h.storage.probe(ctx)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("read from the keyspace: %w", err)
		reason := err.Error()
		h.reason.Store(&reason)
		return err
	})
}

// explain adds the reason to the pages that administrators read.
func (h *healthCheck) explain(next http.Handler) http.Handler {
	tell := func(body []byte, check, reason string) []byte {
		return bytes.Replace(body, []byte("[-]"+check+" failed: reason withheld"), []byte("[-]"+check+" failed: "+reason), 1)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" && r.URL.Path != "/healthz" || !administers(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		page := &bufferedPage{header: http.Header{}, status: http.StatusOK}
		next.ServeHTTP(page, r)
		body := page.body.Bytes()
		if reason := h.reason.Load(); reason != nil {
			body = tell(body, healthCheckName, *reason)
		}
		if err := h.types.err(); err != nil {
			body = tell(body, ownTypesCheckName, err.Error())
		}
		if reason := h.space.reason(); reason != "" {
			body = tell(body, spaceCheckName, reason)
		}
		for name, values := range page.header {
			if name != "Content-Length" {
				w.Header()[name] = values
			}
		}
		w.WriteHeader(page.status)
		_, _ = w.Write(body)
	})
}

func administers(ctx context.Context) bool {
	u, ok := request.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// bufferedPage is a page before it is sent. These pages are short.
type bufferedPage struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (p *bufferedPage) Header() http.Header         { return p.header }
func (p *bufferedPage) WriteHeader(status int)      { p.status = status }
func (p *bufferedPage) Write(b []byte) (int, error) { return p.body.Write(b) }

package apiserver

import (
	"context"
	"net/http"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/server/healthz"
)

// spaceCheck is the check of the datastore's disk behind /readyz and /healthz. It fails from the first write that finds
// the disk full until a write succeeds.
type spaceCheck struct {
	contact *reachability
	lease   clientv3.Lease // guarded
}

const (
	spaceCheckName = "disk-space"
	// probeLeaseSeconds is the life of the lease that probes the disk. A lease needs neither a key nor a
	// revision, and removes itself.
	probeLeaseSeconds = 5
)

// check writes while the disk is known to be full: this server may have nothing else to write, and load
// balancers send it no requests.
func (s *spaceCheck) check() healthz.HealthChecker {
	return healthz.NamedCheck(spaceCheckName, func(r *http.Request) error {
		if !s.contact.full.Load() {
			return nil
		}
		ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
		defer cancel()
		_, err := s.lease.Grant(ctx, probeLeaseSeconds)
		return err
	})
}

// reason returns why the check fails, or "".
func (s *spaceCheck) reason() string {
	if s.contact.full.Load() {
		return noSpace().ErrStatus.Message
	}
	return ""
}

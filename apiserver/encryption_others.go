package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"
)

// Rewriting encrypts the stored objects of other keyspaces as those of this one.
type Rewriting struct{ r *rewriter }

// Form names how objects are encrypted now. Two servers with the same form store them in the same way. It is "" if the form can change
// without a change of its name, because an EncryptionConfiguration decides, and a KMS may have another key.
func (w Rewriting) Form() string {
	for _, resource := range w.r.encryption.defaults.Resources {
		if isNamed(w.r.encryption.configured, resource) {
			return ""
		}
	}
	return w.r.encryption.keys.Load().current
}

// Prefixes begin the keys of the objects that are encrypted.
func (w Rewriting) Prefixes() (all []string) {
	for _, resource := range w.r.encryption.defaults.Resources {
		all = append(all, storedUnder(resource))
	}
	return all
}

// IsStale reports whether a value would now be stored in another form. The key begins with one of Prefixes.
func (w Rewriting) IsStale(ctx context.Context, key string, stored []byte) (bool, error) {
	for _, resource := range w.r.encryption.defaults.Resources {
		if strings.HasPrefix(key, storedUnder(resource)) {
			_, stale, err := w.r.encryption.transformer(resource).TransformFromStorage(ctx, stored, value.DefaultContext(key))
			if err != nil {
				return false, fmt.Errorf("%s: %w", key[len(registryPrefix):], err)
			}
			return stale, nil
		}
	}
	return false, nil
}

// Rewrite stores the objects of a keyspace again that would now be stored in another form. All keyspaces share one pace. It goes on
// after an error, and returns the first one of each resource.
func (w Rewriting) Rewrite(ctx context.Context, keyspace clientv3.KV) (rewritten int, err error) {
	in := *w.r
	in.kv, in.log = keyspace, slog.New(slog.DiscardHandler)
	return in.pass(ctx)
}

// SetPending reports how many workspaces may have objects that are not encrypted as configured.
func (w Rewriting) SetPending(n int) { w.r.metrics.pending.Set(float64(n)) }

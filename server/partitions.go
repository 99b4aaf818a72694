package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
)

// engines opens the parts of a keyspace: it is a partition.Opener.
type engines struct {
	datastore *Datastore
	name      string
	options   mvcc.Options
}

func (e *engines) Prefixes(ctx context.Context) ([]string, error) {
	names, err := e.datastore.Keyspaces(ctx)
	return kv.PartitionPrefixes(e.name, names), err
}

func (e *engines) Open(ctx context.Context, prefix string) (partition.Engine, error) {
	name := e.name
	if prefix != "" {
		name = kv.PartitionName(e.name, prefix)
	}
	table, err := e.datastore.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return mvcc.Open(ctx, table, e.datastore.Backend, e.options)
}

// Split divides a keyspace; Merge undoes it. See kv.Splitter.
func (d *Datastore) Split(ctx context.Context, keyspace, prefix string, opts kv.SplitOptions) (*kv.SplitResult, error) {
	s, err := d.splitter()
	if err != nil {
		return nil, err
	}
	return s.Split(ctx, keyspace, prefix, opts)
}

// Merge undoes a Split.
func (d *Datastore) Merge(ctx context.Context, keyspace, prefix string, opts kv.SplitOptions) (*kv.SplitResult, error) {
	s, err := d.splitter()
	if err != nil {
		return nil, err
	}
	return s.Merge(ctx, keyspace, prefix, opts)
}

func (d *Datastore) splitter() (kv.Splitter, error) {
	s, ok := d.Backend.(kv.Splitter)
	if !ok {
		return nil, fmt.Errorf("split keyspaces of %s: %w: it is open for reading only", d.url, kv.ErrInvalidRequest)
	}
	return s, nil
}

// ensurePartitions splits a keyspace where nothing is stored yet. Servers may do so at
// the same moment.
func (d *Datastore) ensurePartitions(ctx context.Context, keyspace string, prefixes []string) error {
	names, err := d.Keyspaces(ctx)
	if err != nil {
		return err
	}
	there := kv.PartitionPrefixes(keyspace, names)
	for _, prefix := range prefixes {
		if slices.Contains(there, prefix) {
			continue
		}
		_, err := d.Split(ctx, keyspace, prefix, kv.SplitOptions{EmptyOnly: true})
		if errors.Is(err, kv.ErrInvalidRequest) {
			return fmt.Errorf("%w. --partitions divides only what is empty; with the servers stopped, move what is there with\n"+
				"  atoll kv split --datastore %s --keyspace %s --prefix %s", err, d.url, keyspace, prefix)
		}
		if err != nil && !errors.Is(err, kv.ErrPartitionExists) {
			return err
		}
	}
	return nil
}

// keyPrefixes turns what --partitions takes into prefixes of keys: a resource
// as Kubernetes names it (events, leases.coordination.k8s.io, widgets.example.com), or
// a prefix itself (/registry/events/).
func keyPrefixes(partitions []string) (prefixes []string, err error) {
	for _, p := range partitions {
		prefix := p
		if !strings.HasPrefix(p, "/") {
			if prefix, err = resourcePrefix(p); err != nil {
				return nil, err
			}
		}
		if err := kv.CheckPartition(Workspace, prefix, prefixes); err != nil {
			return nil, fmt.Errorf("partition %q: %w", p, err)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// registry is where the API server stores everything.
const registry = "/registry/"

// resourcePrefix is where Kubernetes stores a resource: built-in ones without
// their group, and some under an older name; those of CRDs with it.
func resourcePrefix(name string) (string, error) {
	resource, group, _ := strings.Cut(name, ".")
	switch {
	case resource == "" || strings.ContainsAny(name, "/ "):
		return "", fmt.Errorf("partition %q is neither a resource, such as events or leases.coordination.k8s.io, nor a prefix of keys, such as /registry/events/", name)
	case !builtIn(group):
		return registry + group + "/" + resource + "/", nil
	}
	if old, ok := map[string]string{
		"replicationcontrollers": "controllers", "endpoints": "services/endpoints", "services": "services/specs", "nodes": "minions",
		"ingresses": "ingress",
	}[resource]; ok {
		resource = old
	}
	return registry + resource + "/", nil
}

// builtIn tells the groups whose resources are stored without the group from those
// of CRDs, and of the kinds that describe APIs.
func builtIn(group string) bool {
	switch group {
	case "", "apps", "batch", "autoscaling", "policy", "extensions":
		return true
	}
	name, ok := strings.CutSuffix(group, ".k8s.io")
	return ok && slices.Contains([]string{
		"admissionregistration", "certificates", "coordination", "discovery", "events",
		"flowcontrol.apiserver", "internal.apiserver", "networking", "node", "rbac.authorization", "resource", "scheduling",
		"storage", "storagemigration",
	}, name)
}

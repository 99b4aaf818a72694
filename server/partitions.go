package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
)

// engines opens the partitions of a keyspace: it is a partition.Opener.
type engines struct {
	datastore *Datastore
	name      string
	options   mvcc.Options
	// existing refuses to create the keyspace.
	existing bool
	// id is the ID of the keyspace that was opened first, 0 before.
	id int64
}

func (e *engines) Prefixes(ctx context.Context) ([]string, error) {
	return e.datastore.Partitions(ctx, e.name)
}

func (e *engines) Open(ctx context.Context, prefix string) (partition.Engine, error) {
	table, err := e.table(ctx, prefix)
	if err != nil {
		return nil, err
	}
	return mvcc.Open(ctx, table, e.datastore.Backend, e.options)
}

// table opens the table of a partition, or of the keyspace itself. Only the first call
// creates the keyspace: if it is opened again after a split and was dropped meanwhile, a
// client of the dropped one must not get a new one.
func (e *engines) table(ctx context.Context, prefix string) (kv.Table, error) {
	if prefix != "" {
		return e.datastore.OpenExisting(ctx, kv.PartitionName(e.name, prefix))
	}
	if e.id == 0 {
		open := e.datastore.Open
		if e.existing {
			open = e.datastore.OpenExisting
		}
		table, err := open(ctx, e.name)
		if err == nil {
			e.id = idOf(table)
		}
		return table, err
	}
	table, err := e.datastore.OpenExisting(ctx, e.name)
	if errors.Is(err, kv.ErrKeyNotFound) || err == nil && idOf(table) != e.id {
		return nil, fmt.Errorf("open keyspace %q again: %w", e.name, kv.ErrDropped)
	}
	return table, err
}

// idOf returns the ID of a table's keyspace.
func idOf(table kv.Table) int64 {
	if t, ok := table.(kv.IdentifiedTable); ok {
		return t.ID()
	}
	return 0
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
		return nil, fmt.Errorf("split keyspaces of %s: %w: it is open read-only", d.url, kv.ErrInvalidRequest)
	}
	return s, nil
}

// ensurePartitions splits a keyspace whose prefixes hold no data yet. Several servers
// may call it concurrently.
func (d *Datastore) ensurePartitions(ctx context.Context, keyspace string, prefixes []string) error {
	there, err := d.Partitions(ctx, keyspace)
	if err != nil {
		return err
	}
	for _, prefix := range prefixes {
		if slices.Contains(there, prefix) {
			continue
		}
		_, err := d.Split(ctx, keyspace, prefix, kv.SplitOptions{EmptyOnly: true})
		if errors.Is(err, kv.ErrInvalidRequest) {
			return fmt.Errorf("%w. --partitions can split off only empty prefixes. To move existing data, stop the servers and run:\n"+
				"  atoll kv split --datastore %s --keyspace %s --prefix %s", err, d.url, keyspace, prefix)
		}
		if err != nil && !errors.Is(err, kv.ErrPartitionExists) {
			return err
		}
	}
	return nil
}

// keyPrefixes converts the values of --partitions to key prefixes. A value is a
// resource as Kubernetes names it (events, leases.coordination.k8s.io,
// widgets.example.com) or a prefix (/registry/events/).
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

// registry is the key prefix of everything that the API server stores.
const registry = "/registry/"

// resourcePrefix returns the prefix of a resource's keys. Kubernetes stores built-in
// resources without their group, and some under an older name; those of CRDs with it.
func resourcePrefix(name string) (string, error) {
	resource, group, _ := strings.Cut(name, ".")
	switch {
	case resource == "" || strings.ContainsAny(name, "/ "):
		return "", fmt.Errorf("partition %q is neither a resource, such as events or leases.coordination.k8s.io, nor a key prefix, such as /registry/events/", name)
	case !builtIn(group):
		return registry + group + "/" + resource + "/", nil
	}
	if known := builtInResources(group); !slices.Contains(known, resource) {
		return "", fmt.Errorf("partition %q: there is no such built-in resource%s; name others with their group, such as widgets.example.com, or as a key prefix, such as /registry/events/",
			name, names.DidYouMean(resource, known))
	}
	if old, ok := map[string]string{
		"replicationcontrollers": "controllers", "endpoints": "services/endpoints", "services": "services/specs", "nodes": "minions",
		"ingresses": "ingress",
	}[resource]; ok {
		resource = old
	}
	return registry + resource + "/", nil
}

// builtInResources returns the resources of a built-in group, or of all groups if it is "":
// partitions may omit the group.
func builtInResources(group string) (resources []string) {
	for kind := range scheme.Scheme.AllKnownTypes() {
		if group == "" || kind.Group == group {
			plural, _ := meta.UnsafeGuessKindToResource(kind)
			resources = append(resources, plural.Resource)
		}
	}
	return resources
}

// builtIn reports whether a group's resources are stored without the group, as opposed
// to those of CRDs and of the kinds that define APIs.
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

// Package kinds serves API groups without CRDs, at the end of the API server's chain. Their names and
// definitions come from a Source. It imports upstream's generic API server and nothing of Atoll: the
// API server knows it as an apiserver.KindServer, and package server connects the two.
package kinds

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Source is a source of API groups that are served without CRDs. Names are cheap, and
// all are known all the time. The rest that serving a kind needs is loaded on first use
// and dropped when unused. Methods are called from several goroutines.
type Source interface {
	// Groups returns the groups to serve now. The caller must not change the result.
	Groups() []Group
	// Changed returns a channel that is closed when Groups may return something else
	// than at the time of the call.
	Changed() <-chan struct{}
	// Synced returns a channel that is closed once Groups has every group that may have
	// stored objects. Until then nothing is garbage-collected, no namespace is emptied,
	// and an unknown group is 503 rather than 404: a client that takes a kind for
	// removed may delete things.
	Synced() <-chan struct{}
	// Refused is called whenever the set of groups that cannot be served changes, with
	// the reason for each. It must not block.
	Refused(reasons map[string]string)

	// Schema returns the OpenAPI v3 schema of a kind: spec and status, without the
	// apiVersion, kind and metadata that every kind has. It refers only to the
	// version's Components. The caller owns the result and may change it.
	Schema(schema.GroupVersionKind) (*spec.Schema, error)
	// Open returns the rest of the definition that is needed to serve a kind.
	Open(schema.GroupVersionKind) (Definition, error)
}

// Group is an API group.
type Group struct {
	Name string
	// Versions in order of preference. Each kind is in only one of them: there is no
	// conversion.
	Versions []Version
}

// Version is a version of a group.
type Version struct {
	Name string
	// Revision identifies the definitions of the version's kinds. It changes with any
	// of them (a name, a schema, a column), and servers that serve the same definitions
	// have the same revision.
	Revision string
	Kinds    []Names
	// Components are schemas that the kinds' schemas refer to, by their names in
	// OpenAPI documents. Fields below such a reference are not pruned. May be nil.
	Components func() map[string]*spec.Schema
}

// Names has a kind's names and its other properties in discovery.
type Names struct {
	Kind, Plural, Singular string
	ShortNames, Categories []string
	ClusterScoped          bool
	// Status is set if the kind has the subresource status: only that writes status,
	// and it writes nothing else.
	Status bool
}

// Definition is what serving a kind needs besides its schema.
type Definition struct {
	// Type of whole objects, for server-side apply. Objects that do not conform to it
	// are rejected, because they could never be applied to again.
	Type typed.ParseableType
	// Columns of tables, after the name. If there are none, the age is shown.
	Columns []Column
	// Prepare may complete an object before it is created (old is nil) or before its
	// content is changed. May be nil.
	Prepare func(ctx context.Context, old, object *unstructured.Unstructured)
	// Validate checks the object after that, also in a dry run. It is not called if
	// only metadata or status changes, so that a finalizer can always be removed. May
	// be nil.
	Validate func(ctx context.Context, old, object *unstructured.Unstructured) (refused field.ErrorList, warnings []string)
	// Deleting may change the metadata of an object that a user deletes, and that stays until its
	// finalizers are removed. May be nil.
	Deleting func(by User, object *unstructured.Unstructured)
}

// User is the user of a request.
type User struct {
	Name, UID string
	Groups    []string
}

// Column is a column of a table.
type Column struct {
	Name, Type, Format, Description string
	// JSONPath of the value within the object, such as .status.phase.
	JSONPath string
	// Priority above 0 is for wide tables.
	Priority int32
}

// listKind returns the kind of a list of this kind.
func (n Names) listKind() string { return n.Kind + "List" }

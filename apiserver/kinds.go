package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Kinds tells of API groups that are served without CRDs. Names are cheap, because all of them
// are known all the time; what it takes to serve a kind is asked for when somebody uses it, and forgotten
// when nobody does. Methods are called from several goroutines.
type Kinds interface {
	// Groups are those to serve as of now. Nobody changes what is returned.
	Groups() []KindGroup
	// Changed is closed when Groups may return something else than at the time of
	// the call.
	Changed() <-chan struct{}
	// Synced is closed once Groups has every group of which objects may be stored. Until
	// then nothing is collected, no namespace is emptied, and an unknown group is 503 rather
	// than 404: who takes a kind for gone may delete things.
	Synced() <-chan struct{}
	// Refused is told which groups are not served, and why, whenever that changes.
	// It must not block.
	Refused(reasons map[string]string)

	// Schema is the OpenAPI v3 schema of a kind: spec and status, without apiVersion,
	// kind and metadata, which are every kind's. It refers to nothing but the version's Components.
	// Nobody else has it, so that the caller may add to it.
	Schema(schema.GroupVersionKind) (*spec.Schema, error)
	// Open is the rest of what it takes to serve a kind.
	Open(schema.GroupVersionKind) (KindDefinition, error)
}

// KindGroup is an API group.
type KindGroup struct {
	Name string
	// Versions in the order of preference. A kind is in one of them: nothing converts.
	Versions []KindVersion
}

// KindVersion is a version of a group.
type KindVersion struct {
	Name string
	// Revision of all that there is to know of its kinds. It changes when anything of it does
	// (a name, a schema, a column), and is the same in all servers that serve the same.
	Revision string
	Kinds    []KindNames
	// Components are schemas that those of kinds refer to, by their names in OpenAPI documents. What is
	// below such a reference is not pruned. May be nil.
	Components func() map[string]*spec.Schema
}

// KindNames is what discovery tells of a kind.
type KindNames struct {
	Kind, Plural, Singular string
	ShortNames, Categories []string
	ClusterScoped          bool
	// Status says that the kind has the subresource status: only that writes status,
	// and it writes nothing else.
	Status bool
}

// KindDefinition is what it takes to serve a kind, besides its schema.
type KindDefinition struct {
	// Type of whole objects, for server-side apply. What does not conform to it is refused,
	// since it could not be applied to ever after.
	Type typed.ParseableType
	// Columns of tables, after the name. None is the age.
	Columns []KindColumn
	// Prepare may complete an object that is about to be created (old is nil) or whose
	// content is about to be changed. May be nil.
	Prepare func(ctx context.Context, old, object *unstructured.Unstructured)
	// Validate judges it after that, on a dry run too, and neither a change of metadata alone
	// nor one of status: a finalizer can always be taken away. May be nil.
	Validate func(ctx context.Context, old, object *unstructured.Unstructured) (refused field.ErrorList, warnings []string)
}

// KindColumn is a column of a table.
type KindColumn struct {
	Name, Type, Format, Description string
	// JSONPath of the value within the object, such as .status.phase.
	JSONPath string
	// Priority above 0 is for wide tables.
	Priority int32
}

// listKind is the kind of lists of a kind.
func (n KindNames) listKind() string { return n.Kind + "List" }

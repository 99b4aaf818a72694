// Package infra has the nouns of the infrastructure engine: desired objects, stored states, the kinds that
// providers serve, and the preconditions of changes. It also has the interfaces through which the engine
// reaches everything else. It does nothing itself.
//
// The engine is in the packages below: inventory keeps objects and states in memory, planner compares
// them, and applier applies approved plans. The interfaces are implemented by providercontroller, which
// runs the installed providers, by apistore, which reads and writes the API, and by placing, which places
// workloads.
package infra

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// Unconfigured is the revision of a provider that is used without a ProviderConfig.
const Unconfigured = "unconfigured"

// CheckConfigured returns an error if the resource of a state was created with a ProviderConfig and the
// provider is now used without one. It would look for the resource at its default address, and might
// change or destroy another one there. state may be nil.
func CheckConfigured(state *State, revision string) error {
	if state == nil || !state.Spec.Configured || revision != Unconfigured {
		return nil
	}
	return fmt.Errorf("the resource was created with ProviderConfig %q in namespace %q, which does not exist: create it again (with an empty configuration, if the provider needs none)",
		state.Spec.ProviderConfig, state.Ref.Namespace)
}

// Finalizer keeps a deleted object until its resource is destroyed.
const Finalizer = v1alpha1.Group + "/state"

// Annotations on objects of provider kinds.
const (
	// ImportAnnotation is the provider's ID of an existing resource that the object takes over. It
	// is ignored once there is state.
	ImportAnnotation = v1alpha1.Group + "/import-id"
	// DeletionAnnotation with the value DeletionForget leaves the resource in place when the object
	// is deleted.
	DeletionAnnotation = v1alpha1.Group + "/deletion-policy"
	DeletionForget     = "Forget"
	// MovedToAnnotation on a deleted object releases its resource for an object of another namespace,
	// NAMESPACE/NAME or NAMESPACE/TYPE/NAME. Without it, no other namespace can take the resource over.
	MovedToAnnotation = v1alpha1.Group + "/moved-to"
	// AuthorAnnotation is the user who last changed the object's spec, and ChangedByAnnotation the one who
	// last changed anything that plans depend on, or deleted the object. Each is a v1alpha1.Person as
	// JSON. The server sets them, whatever a request contains.
	AuthorAnnotation    = v1alpha1.Group + "/author"
	ChangedByAnnotation = v1alpha1.Group + "/changed-by"
)

// ErrStale is returned for an object or a state that has changed since the caller read it.
var ErrStale = errors.New("changed since it was read")

// ErrNotServed is returned for a type that no installed provider serves.
var ErrNotServed = errors.New("no installed Provider serves the type")

// Object is the desired state of a resource or data source. It is immutable.
type Object struct {
	// Ref is the reference that expressions use. Its kind is Resource or Data.
	Ref expr.Ref
	// Group, Kind and Plural are the names of its kind in the API.
	Group, Kind, Plural  string
	UID, ResourceVersion string
	Generation           int64
	Labels               map[string]string
	// Deleting reports whether the object was deleted and waits for its finalizers. HasFinalizer
	// reports whether Finalizer is one of them, and NoFinalizers whether it has none at all.
	Deleting, HasFinalizer, NoFinalizers bool
	// ImportID and Forget are the values of its annotations.
	ImportID string
	Forget   bool
	// MovedTo is the value of MovedToAnnotation.
	MovedTo string
	// Author and ChangedBy are the values of AuthorAnnotation and ChangedByAnnotation. They are empty if
	// the server has not recorded them: an earlier version did not, and objects of a Plan are not stored.
	Author, ChangedBy string
	// Spec is JSON.
	Spec []byte
}

// State is the stored state of a resource. It is immutable.
type State struct {
	Ref             expr.Ref
	UID             string
	ResourceVersion string // empty if not stored yet
	Spec            v1alpha1.ResourceStateSpec
}

// Name returns the name of the ResourceState. It needs neither the object nor its provider.
func (s *State) Name() string {
	owner := s.Spec.Object
	provider, _, _ := strings.Cut(owner.Group, ".")
	return v1alpha1.StateName(schema.Plural(owner.Kind), provider, owner.Name)
}

// Names returns the name of the ResourceState and those that it had before. States that were created
// from it may have recorded any of them.
func (s *State) Names() []string {
	return append([]string{s.Name()}, s.Spec.FormerNames...)
}

// SameVersion reports whether two states are the same version of one ResourceState, or both are
// missing.
func (s *State) SameVersion(other *State) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.UID == other.UID && s.ResourceVersion == other.ResourceVersion
}

// ServedKind is a resource or data source type that an installed provider serves.
type ServedKind struct {
	schema.Kind
	// Provider is the name of the Provider object, and Source the address of its provider:
	// HOST/NAMESPACE/TYPE.
	Provider, Source string
	// Revision changes with the schema and with the provider's version.
	Revision string
}

// StateName returns the name of the ResourceState of an object of the kind.
func (k *ServedKind) StateName(object string) string {
	return v1alpha1.StateName(k.Plural, k.Provider, object)
}

// Providers gives access to the installed providers. It is safe for concurrent use.
type Providers interface {
	Functions
	// Kind returns the type of a resource or data source, or ErrNotServed.
	Kind(ref expr.Ref) (*ServedKind, error)
	// Open returns a provider configured by a ProviderConfig of the namespace, and the revision of
	// that configuration. The revision changes with everything in the configuration, Secrets
	// included. The provider is shared, and callers do not close it. If there is no such
	// ProviderConfig, the Provider's own name means an empty configuration, whose revision is
	// Unconfigured. A change of the ProviderConfig or its Secrets may take a moment to show.
	Open(ctx context.Context, provider, namespace, config string) (providerapi.Provider, string, error)
	// OpenLatest is Open with the ProviderConfig and the Secrets that are stored at the time of the call.
	// It reads them from the API, so a plan calls it once for each ProviderConfig.
	OpenLatest(ctx context.Context, provider, namespace, config string) (providerapi.Provider, string, error)
}

// Functions calls functions of installed providers. It is safe for concurrent use.
type Functions interface {
	// CallFunction calls a function of a Provider with known arguments. It returns ErrNotServed if there is no
	// such Provider, and a *providerapi.FunctionError if the function rejects its arguments.
	CallFunction(ctx context.Context, provider, function string, arguments []cty.Value) (cty.Value, error)
}

// Reader is the object whose spec takes a value. Its kind, its namespace and the rights of its author decide
// which values it may take.
type Reader struct{ *Object }

// ReadAuthor returns the user who last changed the object's spec, or nil if the server has not recorded one.
func (r Reader) ReadAuthor() (*v1alpha1.Person, error) { return decodePerson(r.Author) }

// ValueReader reads values for expressions and arguments: from Secrets, and from other objects of the API.
// It is the only way from a spec to an object that is not its own, so each method takes the object that
// reads, and refuses what that may not read. It is safe for concurrent use.
type ValueReader interface {
	// Secret returns the value of one key of a Secret in the reader's namespace. It returns an error for a
	// missing Secret or key.
	Secret(ctx context.Context, reader Reader, name, key string) ([]byte, error)
	// Object returns a whole Kubernetes object, with its secret parts marked providerapi.Sensitive. It
	// returns an error for a missing object.
	Object(ctx context.Context, reader Reader, ref expr.Ref) (cty.Value, error)
	// Reference returns nil if the reader may refer to a resource or data source, and otherwise why not and
	// which grant is missing. With sensitive, it is about the sensitive values of the resource. The
	// resource need not exist.
	Reference(ctx context.Context, reader Reader, ref expr.Ref, sensitive bool) error
}

// StateStore stores resource states. It is safe for concurrent use.
type StateStore interface {
	// Put stores a state and returns it with its new ResourceVersion. It returns ErrStale if the
	// stored ResourceVersion differs, or if a state exists and no ResourceVersion was given.
	Put(ctx context.Context, state *State) (*State, error)
	// Delete removes a state. It returns ErrStale as Put does, and nil if there is no such state.
	Delete(ctx context.Context, state *State) error
}

// ObjectWriter writes to the objects of resources. It is safe for concurrent use.
type ObjectWriter interface {
	// AddFinalizer adds the finalizer to an object before its resource is created, and
	// RemoveFinalizer removes it once the resource is gone. Both do nothing if the object already
	// is so. They return ErrStale if the UID differs; AddFinalizer also if the object is gone or
	// has another generation.
	AddFinalizer(ctx context.Context, object *Object) error
	RemoveFinalizer(ctx context.Context, object *Object) error
	// UpdateStatus writes the object's status and the connection Secret that the object names.
	UpdateStatus(ctx context.Context, object *Object, status ObjectStatus) error
}

// ObjectStatus is the part of an object's status that the engine reports.
type ObjectStatus struct {
	// Attributes is status.attributes; nil leaves it unchanged.
	Attributes map[string]any
	// Secret is the data of its connection Secret; nil leaves it unchanged.
	Secret     map[string][]byte
	SecretName string
	// Generation is the generation that was applied; 0 if none was.
	Generation int64
	Conditions []Condition
}

// Condition is one condition of an object, as in metav1.Condition.
type Condition struct {
	Type, Reason, Message string
	True                  bool
}

// Condition types of provider kinds.
const (
	// ConditionReady reports that the resource exists and matches its spec.
	ConditionReady = "Ready"
	// ConditionDrifted reports that the resource was changed outside Atoll.
	ConditionDrifted = "Drifted"
	// ConditionReconciled reports that a data source was read, or that the spec of a resource was
	// applied.
	ConditionReconciled = "Reconciled"
)

// Workloads places Kubernetes objects in member clusters. It is safe for concurrent use.
type Workloads interface {
	// Place adds a workload to clusters, or removes it from them, as a change proposes. It returns
	// when the clusters have done so. It is idempotent for one Apply. It returns ErrStale if the
	// proposal has changed.
	Place(ctx context.Context, request PlaceRequest) error
}

// PlaceRequest is a workload's change to carry out.
type PlaceRequest struct {
	Address change.Address
	// Preconditions are those of the change.
	Preconditions []string
	// Removed means that the workload leaves all clusters. Healthy means that something depends on
	// it, so that it has to become healthy there and not just exist.
	Removed, Healthy bool
	ApplyUID         string
	// Canceled stops the wait when it is closed. Placements that were already allowed stay.
	Canceled <-chan struct{}
}

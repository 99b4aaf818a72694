// Package infra is the engine of infrastructure: it knows what is written and what is
// there (World), plans what would be done about the difference (Engine.Plan), and
// carries out what was approved (Engine.Apply).
//
// It speaks with nobody but through the interfaces in this file. The rooms below it
// connect them: infra/providers runs what is installed, infra/plans follows
// the API and runs plans and applies as their objects ask for.
package infra

import (
	"context"
	"errors"
	"log/slog"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

// Finalizer keeps an object that is deleted until its resource is.
const Finalizer = v1alpha1.Group + "/state"

// Annotations of objects of providers' kinds.
const (
	// ImportAnnotation is the ID by which the provider knows the resource that the object
	// is to take over. It has no meaning once there is state.
	ImportAnnotation = v1alpha1.Group + "/import-id"
	// DeletionAnnotation with the value DeletionForget leaves the resource alone when the object is
	// deleted.
	DeletionAnnotation = v1alpha1.Group + "/deletion-policy"
	DeletionForget     = "Forget"
)

// ErrMoved is of something that is no longer what it was when it was looked at.
var ErrMoved = errors.New("it has changed in the meantime")

// ErrNotServed is of a type that no installed provider has.
var ErrNotServed = errors.New("no installed Provider serves the type")

// Object is what is written of a resource or a data source. Nobody changes one.
type Object struct {
	// Ref is how expressions name it: of kind Resource or Data.
	Ref reference.Ref
	// Group, Kind and Plural are how the API names its kind.
	Group, Kind, Plural  string
	UID, ResourceVersion string
	Generation           int64
	Labels               map[string]string
	// Deleting says that it was deleted, and waits for its finalizers; Held that
	// Finalizer is one of them, and Free that it has none at all.
	Deleting, Held, Free bool
	// ImportID and Forget are what its annotations say.
	ImportID string
	Forget   bool
	// Spec is JSON.
	Spec []byte
}

// State is what is stored of a resource. Nobody changes one.
type State struct {
	Ref             reference.Ref
	UID             string
	ResourceVersion string // empty if it is not stored yet
	Spec            v1alpha1.ResourceStateSpec
}

// Served is a type that can be used.
type Served struct {
	schema.Kind
	// Provider is the name of the Provider.
	Provider string
	// Revision of what serves it: it changes with the schema, and with the provider's version.
	Revision string
}

// Providers are those that are installed. It is safe for concurrent use.
type Providers interface {
	// Kind of a reference to a resource or data source. ErrNotServed if there is none.
	Kind(ref reference.Ref) (*Served, error)
	// Open gives a provider as the ProviderConfig of a namespace has it act, and the revision of that
	// configuration, which changes with everything in it, Secrets included. What it
	// gives is shared: nobody closes it. Without such a ProviderConfig, the name of the Provider itself
	// stands for an empty configuration.
	Open(ctx context.Context, provider, namespace, config string) (contract.Provider, string, error)
}

// Values are what expressions and arguments take from the API besides resources. It is safe
// for concurrent use. What is not there is an error that says so.
type Values interface {
	// Secret gives what is under a key of a Secret.
	Secret(ctx context.Context, namespace, name, key string) ([]byte, error)
	// Kubernetes gives an object whole, with what is secret marked contract.Sensitive.
	Kubernetes(ctx context.Context, ref reference.Ref) (cty.Value, error)
}

// States is where states are stored. It is safe for concurrent use.
type States interface {
	// Put stores a state, and gives it with its new ResourceVersion. ErrMoved if what is stored is not
	// of the ResourceVersion given, or there is one already and none was given.
	Put(ctx context.Context, state *State) (*State, error)
	// Delete removes it. ErrMoved as with Put; none if it is gone.
	Delete(ctx context.Context, state *State) error
}

// Objects is what is written back to objects. It is safe for concurrent use.
type Objects interface {
	// Hold puts the finalizer on an object before anything is made for it, and Release
	// takes it away once nothing is left. Both do nothing if that is so already. ErrMoved of an object of another
	// UID, or one that is gone (Hold), or is of another generation than given (Hold).
	Hold(ctx context.Context, object *Object) error
	Release(ctx context.Context, object *Object) error
	// Publish writes what became of an object into its status, and into the Secret that it names.
	Publish(ctx context.Context, object *Object, what Published) error
}

// Published is what users see of a resource.
type Published struct {
	// Attributes is what status.attributes shows; nil leaves it as it is.
	Attributes map[string]any
	// Secret is what its connection Secret is to hold; nil leaves it alone.
	Secret     map[string][]byte
	SecretName string
	// Generation that was carried out; 0 if none was.
	Generation int64
	Conditions []Condition
}

// Condition is one of an object's conditions, as metav1.Condition has them.
type Condition struct {
	Type, Reason, Message string
	True                  bool
}

// Conditions of objects of providers' kinds.
const (
	// ConditionReady: the resource is there, and is what was written.
	ConditionReady = "Ready"
	// ConditionDrifted: it was found to have been changed by somebody else.
	ConditionDrifted = "Drifted"
	// ConditionReconciled: of a data source, that it was read; of a resource, that what is written has been carried out.
	ConditionReconciled = "Reconciled"
)

// PlanStore keeps the changes of one plan, in chunks. Shown is for who may read plans;
// sealed has secrets, and is as safe as states are.
type PlanStore interface {
	// Put stores a chunk, whole, over what may be there of an earlier attempt. Several chunks are stored at a time.
	Put(ctx context.Context, chunk int, shown, sealed [][]byte) error
	Shown(ctx context.Context, chunk int) ([][]byte, error)
	Sealed(ctx context.Context, chunk int) ([][]byte, error)
}

// Workloads are objects of Kubernetes in member clusters. It is safe for concurrent use.
type Workloads interface {
	// Place lets clusters get, or lose, what a change proposes, and returns when they have. It can be called again for
	// the same Apply, which does nothing twice. ErrMoved if something else is proposed by now.
	Place(ctx context.Context, what Placing) error
}

// Placing is a workload's change being carried out.
type Placing struct {
	Address plan.Address
	// Preconditions as they are in the change.
	Preconditions []string
	// Removed says that it leaves all clusters; Healthy that something waits for it to be well there, and not just to
	// be there.
	Removed, Healthy bool
	ApplyUID         string
	// Canceled, once closed, has nobody wait any longer. What was allowed stays so.
	Canceled <-chan struct{}
}

// Engine plans and applies. All fields have to be set but Log and, where no plan has any, Workloads. It is safe for concurrent use.
type Engine struct {
	World     *World
	Language  *reference.Language
	Providers Providers
	Values    Values
	States    States
	Objects   Objects
	Workloads Workloads
	Clock     clock.PassiveClock
	Log       *slog.Logger
}

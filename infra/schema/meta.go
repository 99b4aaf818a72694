package schema

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// MetaArguments are the parts of a spec that are for Atoll and not for the provider.
type MetaArguments struct {
	// Provider is the name of the ProviderConfig. It defaults to the Provider's name.
	Provider string
	// DependsOn has references in the syntax of infra/expr.
	DependsOn  []string
	Lifecycle  Lifecycle
	Connection Connection
	// MovedFrom names the object whose resource this one takes over: NAME or NAMESPACE/NAME of the same type,
	// or a reference.
	MovedFrom string
}

// Lifecycle restricts how a resource may be changed.
type Lifecycle struct {
	PreventDestroy      bool
	CreateBeforeDestroy bool
	// IgnoreChanges has the arguments whose changes are ignored once the resource exists. IgnoreAll
	// ignores all changes.
	IgnoreChanges []cty.Path
	IgnoreAll     bool
	// ReplaceTriggeredBy has references in the syntax of infra/expr.
	ReplaceTriggeredBy []string
}

// Connection is the destination of sensitive attributes.
type Connection struct {
	// Secret is a name in the object's namespace, or "".
	Secret string
}

// Names in a spec. OpenTofu reserves them, so no provider has an argument with such a name.
const (
	metaProvider   = "provider"
	metaDependsOn  = "depends_on"
	metaLifecycle  = "lifecycle"
	metaConnection = "connection"
	// metaMovedFrom is the only name that OpenTofu does not reserve. Its SDKs allow no capitals in arguments.
	metaMovedFrom = "movedFrom"

	preventDestroy      = "prevent_destroy"
	createBeforeDestroy = "create_before_destroy"
	ignoreChanges       = "ignore_changes"
	replaceTriggeredBy  = "replace_triggered_by"
	ignoreAll           = "all"

	connectionSecret = "secret"
)

func metaNames() []string {
	return []string{metaConnection, metaDependsOn, metaLifecycle, metaMovedFrom, metaProvider}
}

func isMetaArgument(name string) bool { return slices.Contains(metaNames(), name) }

// MetaArguments decodes the meta-arguments of a spec. Invalid ones are reported and left empty.
func (k Kind) MetaArguments(spec map[string]any) (MetaArguments, field.ErrorList) {
	r := &metaReader{kind: k}
	at := specPath()
	meta := MetaArguments{Provider: r.text(at.Child(metaProvider), spec[metaProvider]), DependsOn: r.texts(at.Child(metaDependsOn), spec[metaDependsOn])}
	if meta.Provider == "" {
		meta.Provider, _, _ = strings.Cut(k.Group, ".")
	}
	if k.Data && spec[metaLifecycle] != nil {
		r.errs = append(r.errs, field.Forbidden(at.Child(metaLifecycle), "a data source has no lifecycle; remove it"))
	} else {
		meta.Lifecycle = r.lifecycle(at.Child(metaLifecycle), spec[metaLifecycle])
	}
	if k.Data && spec[metaMovedFrom] != nil {
		r.errs = append(r.errs, field.Forbidden(at.Child(metaMovedFrom), "a data source has no state that could move; remove it"))
	} else {
		meta.MovedFrom = r.text(at.Child(metaMovedFrom), spec[metaMovedFrom])
	}
	connection := r.object(at.Child(metaConnection), spec[metaConnection], connectionSecret)
	meta.Connection.Secret = r.text(at.Child(metaConnection, connectionSecret), connection[connectionSecret])
	return meta, r.errs
}

type metaReader struct {
	kind Kind
	errs field.ErrorList
}

func (r *metaReader) lifecycle(at *field.Path, given any) Lifecycle {
	l := r.object(at, given, createBeforeDestroy, ignoreChanges, preventDestroy, replaceTriggeredBy)
	lifecycle := Lifecycle{
		PreventDestroy:      r.flag(at.Child(preventDestroy), l[preventDestroy]),
		CreateBeforeDestroy: r.flag(at.Child(createBeforeDestroy), l[createBeforeDestroy]),
		ReplaceTriggeredBy:  r.texts(at.Child(replaceTriggeredBy), l[replaceTriggeredBy]),
	}
	at = at.Child(ignoreChanges)
	if l[ignoreChanges] == ignoreAll {
		lifecycle.IgnoreAll = true
		return lifecycle
	}
	for i, text := range r.texts(at, l[ignoreChanges]) {
		if text == ignoreAll {
			lifecycle.IgnoreAll = true
			continue
		}
		path, err := ParsePath(text)
		if err == nil {
			err = r.known(path)
		}
		if err != nil {
			r.errs = append(r.errs, field.Invalid(at.Index(i), text, err.Error()))
			continue
		}
		lifecycle.IgnoreChanges = append(lifecycle.IgnoreChanges, path)
	}
	return lifecycle
}

// known verifies that a path begins with an argument. Deeper steps are not checked, because a
// provider's values can have any form.
func (r *metaReader) known(path cty.Path) error {
	block := &r.kind.Schema.Block
	name := path[0].(cty.GetAttrStep).Name
	if a := block.Attribute(name); a != nil && !settable(a) {
		return fmt.Errorf("%s is computed by the provider, so its changes need not be ignored; remove it", name)
	}
	if block.Attribute(name) == nil && block.Nested(name) == nil {
		return fmt.Errorf("%s", unknownField(name, argumentNames(block)))
	}
	return nil
}

func (r *metaReader) object(at *field.Path, given any, names ...string) map[string]any {
	fields := as[map[string]any](r, at, given, "an object")
	for _, name := range sortedKeys(fields) {
		if !slices.Contains(names, name) {
			r.errs = append(r.errs, field.Forbidden(at.Child(name), unknownField(name, names)))
		}
	}
	return fields
}

func (r *metaReader) text(at *field.Path, given any) string {
	return as[string](r, at, given, "a string")
}

func (r *metaReader) texts(at *field.Path, given any) []string {
	list := as[[]any](r, at, given, "a list of strings")
	var texts []string
	for i, item := range list {
		if item == nil || item == "" {
			r.errs = append(r.errs, field.Required(at.Index(i), "must not be empty"))
		}
		texts = append(texts, r.text(at.Index(i), item))
	}
	return texts
}

func (r *metaReader) flag(at *field.Path, given any) bool {
	return as[bool](r, at, given, "true or false")
}

// as returns a value of the given type. If it has another type, as reports an error and returns the
// zero value.
func as[T any](r *metaReader, at *field.Path, given any, must string) T {
	v, ok := given.(T)
	if !ok && given != nil {
		r.errs = append(r.errs, field.TypeInvalid(at, given, "must be "+must))
	}
	return v
}

// settable reports whether an attribute is an argument.
func settable(a *providerapi.Attribute) bool { return a.Required || a.Optional }

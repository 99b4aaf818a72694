package schema

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// Own is what a spec says to Atoll, and not to the provider.
type Own struct {
	// Provider is the name of the ProviderConfig: unless said the one that is called like the Provider.
	Provider string
	// DependsOn are references, as infra/reference reads them.
	DependsOn  []string
	Lifecycle  Lifecycle
	Connection Connection
}

// Lifecycle is how a resource may be changed.
type Lifecycle struct {
	PreventDestroy      bool
	CreateBeforeDestroy bool
	// IgnoreChanges are the arguments that are left as they are once the resource is there; IgnoreAll are all of
	// them.
	IgnoreChanges []cty.Path
	IgnoreAll     bool
	// ReplaceTriggeredBy are references, as infra/reference reads them.
	ReplaceTriggeredBy []string
}

// Connection is where sensitive attributes go.
type Connection struct {
	// Secret of the object's namespace, or "".
	Secret string
}

// Names in spec. The language of OpenTofu reserves them, so that no provider has an argument called so.
const (
	ownProvider   = "provider"
	ownDependsOn  = "depends_on"
	ownLifecycle  = "lifecycle"
	ownConnection = "connection"

	preventDestroy      = "prevent_destroy"
	createBeforeDestroy = "create_before_destroy"
	ignoreChanges       = "ignore_changes"
	replaceTriggeredBy  = "replace_triggered_by"
	ignoreAll           = "all"

	connectionSecret = "secret"
)

func ownNames() []string {
	return []string{ownConnection, ownDependsOn, ownLifecycle, ownProvider}
}

func isOwn(name string) bool { return slices.Contains(ownNames(), name) }

// Own reads what is Atoll's own in a spec. What cannot be read is told, and as if it were not there.
func (k Kind) Own(spec map[string]any) (Own, field.ErrorList) {
	r := &ownReader{kind: k}
	at := specPath()
	own := Own{Provider: r.text(at.Child(ownProvider), spec[ownProvider]), DependsOn: r.texts(at.Child(ownDependsOn), spec[ownDependsOn])}
	if own.Provider == "" {
		own.Provider, _, _ = strings.Cut(k.Group, ".")
	}
	if k.Data && spec[ownLifecycle] != nil {
		r.errs = append(r.errs, field.Forbidden(at.Child(ownLifecycle), "a data source is only read, and never made or destroyed; leave it out"))
	} else {
		own.Lifecycle = r.lifecycle(at.Child(ownLifecycle), spec[ownLifecycle])
	}
	connection := r.object(at.Child(ownConnection), spec[ownConnection], connectionSecret)
	own.Connection.Secret = r.text(at.Child(ownConnection, connectionSecret), connection[connectionSecret])
	return own, r.errs
}

type ownReader struct {
	kind Kind
	errs field.ErrorList
}

func (r *ownReader) lifecycle(at *field.Path, given any) Lifecycle {
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

// known makes sure that a path begins with an argument; below, a provider's values can have any form.
func (r *ownReader) known(path cty.Path) error {
	block := &r.kind.Schema.Block
	name := path[0].(cty.GetAttrStep).Name
	if a := block.Attribute(name); a != nil && !settable(a) {
		return fmt.Errorf("%s is computed by the provider: changes of it need not be ignored; leave it out", name)
	}
	if block.Attribute(name) == nil && block.Nested(name) == nil {
		return fmt.Errorf("%s", unknownName(name, argumentNames(block)))
	}
	return nil
}

func (r *ownReader) object(at *field.Path, given any, names ...string) map[string]any {
	fields := as[map[string]any](r, at, given, "an object")
	for _, name := range sortedKeys(fields) {
		if !slices.Contains(names, name) {
			r.errs = append(r.errs, field.Forbidden(at.Child(name), unknownName(name, names)))
		}
	}
	return fields
}

func (r *ownReader) text(at *field.Path, given any) string {
	return as[string](r, at, given, "a string")
}

func (r *ownReader) texts(at *field.Path, given any) []string {
	list := as[[]any](r, at, given, "a list of strings")
	var texts []string
	for i, item := range list {
		if item == nil || item == "" {
			r.errs = append(r.errs, field.Required(at.Index(i), "must name something; remove the entry if it is not needed"))
		}
		texts = append(texts, r.text(at.Index(i), item))
	}
	return texts
}

func (r *ownReader) flag(at *field.Path, given any) bool {
	return as[bool](r, at, given, "true or false")
}

// as gives what is given, if it is of the type, and else nothing and a complaint.
func as[T any](r *ownReader, at *field.Path, given any, must string) T {
	v, ok := given.(T)
	if !ok && given != nil {
		r.errs = append(r.errs, field.TypeInvalid(at, given, "must be "+must))
	}
	return v
}

// settable tells whether an attribute is an argument.
func settable(a *contract.Attribute) bool { return a.Required || a.Optional }

package providers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/schema"
)

func secretResource() runtimeschema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("secrets")
}

// OpenError is why a provider does not act as a ProviderConfig has it: by a reason of the ProviderConfig's
// condition Configured.
type OpenError struct {
	Reason string
	err    error
}

func (e *OpenError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *OpenError) Unwrap() error { return e.err }

func refusedf(format string, values ...any) error {
	return &OpenError{v1alpha1.ReasonConfigRefused, fmt.Errorf(format, values...)}
}

// settings is what a ProviderConfig says, with the versions of the Secrets that it names.
type settings struct {
	namespace, name string
	// written is spec.configuration. There is none, if there is no ProviderConfig and none is needed.
	written map[string]any
	present bool
	secrets []secretVersion // sorted by name
}

// secretVersion is of a Secret as it was.
type secretVersion struct {
	Name    string    `json:"name"`
	UID     types.UID `json:"uid"`
	Version string    `json:"version"`
}

// revision is the same as long as what is written and the Secrets are the same, after a restart, too. It goes into
// states, so it is made of the Secrets' versions: a digest of what they hold would be something to guess at.
func (s *settings) revision() string {
	text, err := json.Marshal([]any{s.written, s.secrets})
	if err != nil {
		text = []byte(err.Error()) // it came of JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// where names it in errors.
func (s *settings) where() string {
	return fmt.Sprintf("ProviderConfig %q of namespace %q", s.name, s.namespace)
}

// readSettings asks the API what a ProviderConfig says.
func (r *Registry) readSettings(ctx context.Context, provider, namespace, name string) (*settings, error) {
	s := &settings{namespace: namespace, name: name}
	u, err := r.api.Dynamic.Resource(v1alpha1.ProviderConfigResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && name == provider:
		return s, nil
	case apierrors.IsNotFound(err):
		return nil, refusedf("there is no %s: make one with spec.provider: %s, or leave spec.provider of the object out to use the one called %s", s.where(), provider, provider)
	case err != nil:
		return nil, &OpenError{v1alpha1.ReasonConfigUnavailable, fmt.Errorf("read %s: %w", s.where(), err)}
	}
	config := &v1alpha1.ProviderConfig{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, config); err != nil {
		return nil, refusedf("read %s: %w", s.where(), err)
	}
	if config.Spec.Provider != provider {
		return nil, refusedf("%s is of Provider %s, and not of %s: name another one in spec.provider of the object", s.where(), config.Spec.Provider, provider)
	}
	s.present = true
	if s.written, err = written(config); err != nil {
		return nil, refusedf("%s: %w", s.where(), err)
	}
	for _, name := range secretsIn(s.written) {
		m, err := r.api.Metadata.Resource(secretResource()).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, refusedf("%s: there is no Secret %q in its namespace: make it, or name another", s.where(), name)
		case err != nil:
			return nil, &OpenError{v1alpha1.ReasonConfigUnavailable, fmt.Errorf("%s: read Secret %q: %w", s.where(), name, err)}
		}
		s.secrets = append(s.secrets, secretVersion{name, m.UID, m.ResourceVersion})
	}
	return s, nil
}

// written is what a ProviderConfig configures with.
func written(config *v1alpha1.ProviderConfig) (map[string]any, error) {
	if config.Spec.Configuration == nil || len(config.Spec.Configuration.Raw) == 0 {
		return map[string]any{}, nil
	}
	var out map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(config.Spec.Configuration.Raw)))
	decoder.UseNumber()
	if err := decoder.Decode(&out); err != nil {
		return nil, fmt.Errorf("spec.configuration must be an object: %w", err)
	}
	if out == nil {
		out = map[string]any{}
	}
	numbers(out)
	return out, nil
}

// numbers gives numbers the Go types that the API's objects have.
func numbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = numbers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		if float, err := v.Float64(); err == nil {
			return float
		}
		return v.String()
	}
	return value
}

// secretsIn are the names of the Secrets that a configuration takes values from, sorted.
func secretsIn(value any) []string {
	var out []string
	var walk func(any)
	walk = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			if ref, ok := v[secretKeyRef].(map[string]any); ok && len(v) == 1 {
				if name, ok := ref["name"].(string); ok && name != "" {
					out = append(out, name)
				}
				return
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(value)
	slices.Sort(out)
	return slices.Compact(out)
}

const secretKeyRef = "secretKeyRef"

func refersToSecret(value any) bool { return len(secretsIn(value)) > 0 }

// value makes what the provider is configured with, marked where it is secret.
func (s *settings) value(ctx context.Context, r *Registry, catalog contract.Catalog) (cty.Value, error) {
	block := takingSecrets(catalog.Config().Block, s.written)
	at := field.NewPath("spec", "configuration")
	if errs := schema.Validate(&block, at, s.written, schema.Checks{}); len(errs) > 0 {
		if !s.present {
			return cty.NilVal, refusedf("the provider has to be configured, and there is no %s: make one (%w)", s.where(), errs.ToAggregate())
		}
		return cty.NilVal, refusedf("%s: %w", s.where(), errs.ToAggregate())
	}
	secrets := &secretReader{ctx: ctx, registry: r, settings: s, read: map[string]map[string][]byte{}}
	value, errs := schema.Config(&block, at, s.written, secrets)
	switch {
	case secrets.passing != nil:
		return cty.NilVal, &OpenError{v1alpha1.ReasonConfigUnavailable, secrets.passing}
	case len(errs) > 0:
		return cty.NilVal, refusedf("%s: %w", s.where(), errs.ToAggregate())
	}
	return value, nil
}

// takingSecrets is the schema with all that is given from Secrets called sensitive: providers call few of their
// credentials so, and none is to be written out because of it. Of a map or a list that takes one
// value from a Secret, all have to be from Secrets.
func takingSecrets(block contract.Block, given map[string]any) contract.Block {
	block.Attributes = slices.Clone(block.Attributes)
	for i := range block.Attributes {
		a := &block.Attributes[i]
		if refersToSecret(given[a.Name]) && a.Nested == nil {
			a.Sensitive = true
		}
		if a.Nested != nil && refersToSecret(given[a.Name]) {
			if _, all := directRef(given[a.Name]); all {
				a.Sensitive = true
				continue
			}
			nested := *a.Nested
			of := takingSecrets(contract.Block{Attributes: nested.Attributes}, merged(given[a.Name], nested.Nesting))
			nested.Attributes = of.Attributes
			a.Nested = &nested
		}
	}
	block.Blocks = slices.Clone(block.Blocks)
	for i := range block.Blocks {
		n := &block.Blocks[i]
		if refersToSecret(given[n.Name]) {
			n.Block = takingSecrets(n.Block, merged(given[n.Name], n.Nesting))
		}
	}
	return block
}

// directRef tells whether a value is a secretKeyRef itself.
func directRef(value any) (any, bool) {
	object, ok := value.(map[string]any)
	if !ok || len(object) != 1 {
		return nil, false
	}
	ref, ok := object[secretKeyRef]
	return ref, ok
}

// merged puts what is given for several objects of one schema into one, with what refers to a Secret
// rather than what does not.
func merged(value any, nesting contract.Nesting) map[string]any {
	var objects []any
	switch v := value.(type) {
	case []any:
		objects = v
	case map[string]any:
		if nesting == contract.NestingMap {
			for _, object := range v {
				objects = append(objects, object)
			}
		} else {
			objects = []any{v}
		}
	}
	out := map[string]any{}
	for _, object := range objects {
		fields, _ := object.(map[string]any)
		for name, inner := range fields {
			if is, ok := out[name]; ok && refersToSecret(is) {
				continue
			}
			out[name] = inner
		}
	}
	return out
}

// secretReader gives a configuration its secrets, of the versions that the settings name.
type secretReader struct {
	ctx      context.Context
	registry *Registry
	settings *settings
	read     map[string]map[string][]byte
	// passing is an error of the API, which says nothing of the configuration.
	passing error
}

// Expression implements schema.Resolver.
func (*secretReader) Expression(*field.Path, string) (cty.Value, error) {
	return cty.NilVal, errors.New("must not be an expression: a provider is configured before any resource has a value; write the value, or take it from a Secret with {secretKeyRef: {name: …, key: …}}; $${ stands for ${ itself")
}

// Secret implements schema.Resolver.
func (r *secretReader) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	data, ok := r.read[ref.Name]
	if !ok {
		var err error
		if data, err = r.fetch(ref.Name); err != nil {
			r.passing = errors.Join(r.passing, err)
			return cty.NilVal, errors.New("cannot be read now")
		}
		r.read[ref.Name] = data
	}
	text, ok := data[ref.Key]
	if !ok {
		return cty.NilVal, fmt.Errorf("Secret %q has no key %q", ref.Name, ref.Key)
	}
	return cty.StringVal(string(text)).Mark(contract.Sensitive), nil
}

func (r *secretReader) fetch(name string) (map[string][]byte, error) {
	u, err := r.registry.api.Dynamic.Resource(secretResource()).Namespace(r.settings.namespace).Get(r.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: read Secret %q: %w", r.settings.where(), name, err)
	}
	now := secretVersion{name, u.GetUID(), u.GetResourceVersion()}
	if !slices.Contains(r.settings.secrets, now) {
		return nil, fmt.Errorf("%s: Secret %q changes while it is read; try again", r.settings.where(), name)
	}
	secret := &corev1.Secret{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, secret); err != nil {
		return nil, fmt.Errorf("%s: Secret %q cannot be read", r.settings.where(), name)
	}
	return secret.Data, nil
}

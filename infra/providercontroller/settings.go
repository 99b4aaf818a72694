package providercontroller

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
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

func secretResource() runtimeschema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("secrets")
}

// OpenError is the reason why a provider cannot be used with a ProviderConfig. Reason is a reason
// of the ProviderConfig's condition Configured.
type OpenError struct {
	Reason string
	err    error
}

func (e *OpenError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *OpenError) Unwrap() error { return e.err }

func refusedf(format string, values ...any) error {
	return &OpenError{v1alpha1.ReasonConfigRefused, fmt.Errorf(format, values...)}
}

// settings is the configuration of a ProviderConfig, with the versions of the Secrets that it
// references.
type settings struct {
	namespace, name string
	// configuration is spec.configuration. It is nil if there is no ProviderConfig and none is
	// needed.
	configuration map[string]any
	present       bool
	secrets       []secretVersion // sorted by name
}

// secretVersion identifies one version of a Secret.
type secretVersion struct {
	Name    string    `json:"name"`
	UID     types.UID `json:"uid"`
	Version string    `json:"version"`
}

// revision is stable while the configuration and its Secrets are unchanged, also over restarts. It
// is stored in states, so it uses the Secrets' versions: a digest of their contents would allow
// guesses.
func (s *settings) revision() string {
	if !s.present {
		return infra.Unconfigured
	}
	text, err := json.Marshal([]any{s.configuration, s.secrets})
	if err != nil {
		text = []byte(err.Error()) // it was decoded from JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// where names the ProviderConfig in errors.
func (s *settings) where() string {
	return fmt.Sprintf("ProviderConfig %q in namespace %q", s.name, s.namespace)
}

// readSettings reads a ProviderConfig from the API.
func (r *Registry) readSettings(ctx context.Context, provider, namespace, name string) (*settings, error) {
	s := &settings{namespace: namespace, name: name}
	u, err := r.clients.Dynamic.Resource(v1alpha1.ProviderConfigResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && name == provider:
		return s, nil
	case apierrors.IsNotFound(err):
		return nil, refusedf("%s not found: create it with spec.provider: %s, or remove spec.provider from the object to use the ProviderConfig named %s", s.where(), provider, provider)
	case err != nil:
		return nil, &OpenError{v1alpha1.ReasonConfigUnavailable, fmt.Errorf("read %s: %w", s.where(), err)}
	}
	config := &v1alpha1.ProviderConfig{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, config); err != nil {
		return nil, refusedf("read %s: %w", s.where(), err)
	}
	if config.Spec.Provider != provider {
		return nil, refusedf("%s configures Provider %s, not %s: reference another one in spec.provider of the object", s.where(), config.Spec.Provider, provider)
	}
	s.present = true
	if s.configuration, err = configurationOf(config); err != nil {
		return nil, refusedf("%s: %w", s.where(), err)
	}
	for _, name := range secretsIn(s.configuration) {
		m, err := r.clients.Metadata.Resource(secretResource()).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, refusedf("%s: Secret %q not found in its namespace: create it, or reference another one", s.where(), name)
		case err != nil:
			return nil, &OpenError{v1alpha1.ReasonConfigUnavailable, fmt.Errorf("%s: read Secret %q: %w", s.where(), name, err)}
		}
		s.secrets = append(s.secrets, secretVersion{name, m.UID, m.ResourceVersion})
	}
	return s, nil
}

// configurationOf decodes spec.configuration.
func configurationOf(config *v1alpha1.ProviderConfig) (map[string]any, error) {
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
	normalizeNumbers(out)
	return out, nil
}

// normalizeNumbers converts numbers to the Go types that API objects use.
func normalizeNumbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = normalizeNumbers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = normalizeNumbers(v[i])
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

// secretsIn returns the names of the Secrets that a configuration references, sorted.
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

// value returns the provider's configuration with its secrets marked.
func (s *settings) value(ctx context.Context, r *Registry, catalog providerapi.Catalog) (cty.Value, error) {
	block := markSecretArguments(catalog.Config().Block, s.configuration)
	at := field.NewPath("spec", "configuration")
	if errs := schema.Validate(&block, at, s.configuration, schema.Checks{}); len(errs) > 0 {
		if !s.present {
			return cty.NilVal, refusedf("%s not found, but the provider needs a configuration: create it (%w)", s.where(), errs.ToAggregate())
		}
		return cty.NilVal, refusedf("%s: %w", s.where(), errs.ToAggregate())
	}
	secrets := &secretReader{ctx: ctx, registry: r, settings: s, read: map[string]map[string][]byte{}}
	value, errs := schema.Config(&block, at, s.configuration, secrets)
	switch {
	case secrets.apiErr != nil:
		return cty.NilVal, &OpenError{v1alpha1.ReasonConfigUnavailable, secrets.apiErr}
	case len(errs) > 0:
		return cty.NilVal, refusedf("%s: %w", s.where(), errs.ToAggregate())
	}
	return value, nil
}

// markSecretArguments returns the schema with all arguments that come from Secrets marked
// sensitive. Providers declare few of their credentials sensitive, but none may be shown. If one
// element of a map or list comes from a Secret, all elements must.
func markSecretArguments(block providerapi.Block, given map[string]any) providerapi.Block {
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
			of := markSecretArguments(providerapi.Block{Attributes: nested.Attributes}, merged(given[a.Name], nested.Nesting))
			nested.Attributes = of.Attributes
			a.Nested = &nested
		}
	}
	block.Blocks = slices.Clone(block.Blocks)
	for i := range block.Blocks {
		n := &block.Blocks[i]
		if refersToSecret(given[n.Name]) {
			n.Block = markSecretArguments(n.Block, merged(given[n.Name], n.Nesting))
		}
	}
	return block
}

// directRef reports whether a value is itself a secretKeyRef.
func directRef(value any) (any, bool) {
	object, ok := value.(map[string]any)
	if !ok || len(object) != 1 {
		return nil, false
	}
	ref, ok := object[secretKeyRef]
	return ref, ok
}

// merged combines the values of several objects of one schema into one. A value that references a
// Secret takes precedence.
func merged(value any, nesting providerapi.Nesting) map[string]any {
	var objects []any
	switch v := value.(type) {
	case []any:
		objects = v
	case map[string]any:
		if nesting == providerapi.NestingMap {
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

// secretReader resolves the secrets of a configuration, in the versions that the settings name.
type secretReader struct {
	ctx      context.Context
	registry *Registry
	settings *settings
	read     map[string]map[string][]byte
	// apiErr is an error of the API, which is not the fault of the configuration.
	apiErr error
}

// Expression implements schema.Resolver.
func (*secretReader) Expression(*field.Path, string) (cty.Value, error) {
	return cty.NilVal, errors.New("must not be an expression, because a provider is configured before any resource has a value: use a constant value, or a Secret with {secretKeyRef: {name: …, key: …}}; write $${ for the text ${")
}

// Secret implements schema.Resolver.
func (r *secretReader) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	data, ok := r.read[ref.Name]
	if !ok {
		var err error
		if data, err = r.fetch(ref.Name); err != nil {
			r.apiErr = errors.Join(r.apiErr, err)
			return cty.NilVal, errors.New("could not be read")
		}
		r.read[ref.Name] = data
	}
	text, ok := data[ref.Key]
	if !ok {
		return cty.NilVal, fmt.Errorf("Secret %q has no key %q", ref.Name, ref.Key)
	}
	return cty.StringVal(string(text)).Mark(providerapi.Sensitive), nil
}

func (r *secretReader) fetch(name string) (map[string][]byte, error) {
	u, err := r.registry.clients.Dynamic.Resource(secretResource()).Namespace(r.settings.namespace).Get(r.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: read Secret %q: %w", r.settings.where(), name, err)
	}
	now := secretVersion{name, u.GetUID(), u.GetResourceVersion()}
	if !slices.Contains(r.settings.secrets, now) {
		return nil, fmt.Errorf("%s: Secret %q changed while it was read; retry", r.settings.where(), name)
	}
	secret := &corev1.Secret{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, secret); err != nil {
		return nil, fmt.Errorf("%s: cannot decode Secret %q", r.settings.where(), name)
	}
	return secret.Data, nil
}

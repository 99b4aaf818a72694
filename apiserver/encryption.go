package apiserver

import (
	"bytes"
	"context"
	"crypto/aes"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	encryptaes "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// DefaultEncryption encrypts resources that Config.EncryptionConfigFile does not name. Values have
// the form of an EncryptionConfiguration's provider aesgcm with the same keys, so they can be read
// with such a file, too. Their ciphertext is bound to their key in the keyspace.
type DefaultEncryption struct {
	// Resources are stored encrypted.
	Resources []schema.GroupResource
	// Keys decrypt, and the first one encrypts. Without keys, nothing is encrypted.
	Keys []EncryptionKey
	// Reload, if set, returns the present keys. It is called when a stored value names a key that is
	// not among them: another server has a new one.
	Reload func(context.Context) ([]EncryptionKey, error)
	// KeyFile is the path of the file with the keys, for messages.
	KeyFile string
	// Metrics may be nil.
	Metrics *EncryptionMetrics
	// Others makes a pass over the other keyspaces with objects that are encrypted in this way. The leading server calls it at its start,
	// when another key encrypts, and from time to time. Its error says that some objects may not be encrypted as configured. nil if there
	// are no others.
	Others func(context.Context, Rewriting) error
	// Recheck is the time between calls of Others, if neither the key changes nor anything fails.
	Recheck time.Duration
}

// EncryptionKey is an AES key.
type EncryptionKey struct {
	// Name is stored with each value. It begins with EncryptionKeyPrefix, and no two keys have the same.
	Name string
	// Secret has 32 bytes.
	Secret []byte
}

// EncryptionKeyPrefix begins the names of the keys of a DefaultEncryption.
const EncryptionKeyPrefix = "atoll-"

var (
	gcmPrefix        = []byte("k8s:enc:aesgcm:v1:")
	defaultKeyPrefix = append(slices.Clone(gcmPrefix), EncryptionKeyPrefix...)
)

// reloadInterval bounds how often values under unknown keys make a server read its keys again.
const reloadInterval = 5 * time.Second

// encryption decides how the values of each resource are encrypted and decrypted.
type encryption struct {
	// configured are the transformers of the EncryptionConfiguration; nil without one.
	configured encryptionconfig.StaticTransformers
	stop       func()             // of the KMS plug-ins; may be nil
	defaults   *DefaultEncryption // may be nil

	keys atomic.Pointer[keyring]
	// changed receives a value when another key encrypts.
	changed chan struct{}

	reloading  sync.Mutex
	reloaded   time.Time
	reloadFail error
}

// keyring are the keys of a DefaultEncryption.
type keyring struct {
	current string // the name of the key that encrypts
	keys    []EncryptionKey
	by      map[string]value.Transformer
}

func newEncryption(defaults *DefaultEncryption) (*encryption, error) {
	e := &encryption{defaults: defaults, changed: make(chan struct{}, 1)}
	if defaults == nil || len(defaults.Keys) == 0 {
		e.keys.Store(&keyring{})
		return e, nil
	}
	return e, e.use(defaults.Keys)
}

// configure loads an EncryptionConfiguration, and adds the health checks of its KMS plug-ins to the server's.
func (e *encryption) configure(file string, server *genericapiserver.Config) error {
	if file == "" {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, server.APIServerID)
	if err != nil {
		stop()
		return fmt.Errorf("load the encryption configuration %s: %w", file, err)
	}
	e.stop = stop
	e.configured = loaded.Transformers
	// Not part of livez: restarting this server does not repair a plug-in.
	server.AddHealthzChecks(loaded.HealthChecks...)
	server.AddReadyzChecks(loaded.HealthChecks...)
	return nil
}

// close ends the connections to KMS plug-ins.
func (e *encryption) close() {
	if e != nil && e.stop != nil {
		e.stop()
	}
}

// use replaces the keys.
func (e *encryption) use(keys []EncryptionKey) error {
	ring := &keyring{keys: keys, by: map[string]value.Transformer{}}
	for _, k := range keys {
		block, err := aes.NewCipher(k.Secret)
		if err != nil || len(k.Secret) != 32 {
			return fmt.Errorf("encryption key %s: it does not have 32 bytes", k.Name)
		}
		if ring.by[k.Name], err = encryptaes.NewGCMTransformer(block); err != nil {
			return fmt.Errorf("encryption key %s: %w", k.Name, err)
		}
	}
	if len(keys) > 0 {
		ring.current = keys[0].Name
	}
	if old := e.keys.Swap(ring); old != nil && old.current != ring.current {
		select {
		case e.changed <- struct{}{}:
		default:
		}
	}
	return nil
}

// reload reads the keys again, unless that was done just now.
func (e *encryption) reload(ctx context.Context) error {
	e.reloading.Lock()
	defer e.reloading.Unlock()
	if e.defaults == nil || e.defaults.Reload == nil || time.Since(e.reloaded) < reloadInterval {
		return e.reloadFail
	}
	e.reloaded = time.Now()
	keys, err := e.defaults.Reload(ctx)
	if err == nil {
		err = e.use(keys)
	}
	e.reloadFail = err
	return err
}

// ReloadEncryptionKeys reads the keys of the DefaultEncryption again, so that a new one encrypts from now on.
func (s *Server) ReloadEncryptionKeys(ctx context.Context) error {
	return s.storage.encryption.reload(ctx)
}

// transformer returns the transformer for the values of a resource.
func (e *encryption) transformer(resource schema.GroupResource) value.Transformer {
	if e == nil {
		return identity.NewEncryptCheckTransformer()
	}
	t := resourceTransformer{encryption: e, resource: resource}
	if e.configured != nil {
		t.configured = e.configured.TransformerForResource(resource)
		t.named = isNamed(e.configured, resource)
	}
	t.byDefault = !t.named && e.defaults != nil && slices.Contains(e.defaults.Resources, resource)
	return t
}

// isNamed reports whether an EncryptionConfiguration has an entry for a resource.
func isNamed(entries encryptionconfig.StaticTransformers, resource schema.GroupResource) bool {
	for _, r := range []schema.GroupResource{resource, {Group: resource.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if _, ok := entries[r]; ok {
			return true
		}
	}
	return false
}

// resourceTransformer encrypts as the EncryptionConfiguration says, if that names the resource, and
// otherwise by default. In both cases it decrypts values that were encrypted by default, so that an
// EncryptionConfiguration can be introduced on existing data.
type resourceTransformer struct {
	*encryption
	resource   schema.GroupResource
	configured value.Transformer // nil without an EncryptionConfiguration
	named      bool
	byDefault  bool
}

func (t resourceTransformer) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	ring := t.keys.Load()
	if !t.byDefault || ring.current == "" {
		if t.configured != nil {
			return t.configured.TransformToStorage(ctx, data, at)
		}
		return data, nil
	}
	sealed, err := ring.by[ring.current].TransformToStorage(ctx, data, at)
	if err != nil {
		return nil, fmt.Errorf("encrypt with key %s: %w", ring.current, err)
	}
	return slices.Concat(gcmPrefix, []byte(ring.current), []byte(":"), sealed), nil
}

// TransformFromStorage reports as stale what would now be stored in another form.
func (t resourceTransformer) TransformFromStorage(ctx context.Context, stored []byte, at value.Context) ([]byte, bool, error) {
	name, box, ok := defaultKeyOf(stored)
	switch {
	case ok:
		return t.openDefault(ctx, name, box, stored, at)
	case t.configured != nil && (t.named || bytes.HasPrefix(stored, encryptedPrefix)):
		return t.configured.TransformFromStorage(ctx, stored, at)
	case bytes.HasPrefix(stored, encryptedPrefix):
		return nil, false, fmt.Errorf("it is encrypted with %s: set --encryption-provider-config to the file with that key", writtenBy(stored))
	}
	return stored, t.byDefault && t.keys.Load().current != "", nil
}

// openDefault decrypts a value that was encrypted by default.
func (t resourceTransformer) openDefault(ctx context.Context, name string, box, stored []byte, at value.Context) ([]byte, bool, error) {
	ring := t.keys.Load()
	key, ok := ring.by[name]
	if !ok && t.named {
		// The administrator may have put the key into the EncryptionConfiguration.
		if plain, stale, err := t.configured.TransformFromStorage(ctx, stored, at); err == nil {
			return plain, stale, nil
		}
	}
	if !ok && t.defaults != nil {
		err := t.reload(ctx)
		ring = t.keys.Load()
		if key, ok = ring.by[name]; !ok && err != nil {
			return nil, false, fmt.Errorf("it is encrypted with key %s, which this server does not have, and its keys cannot be read again: %w", name, err)
		}
	}
	if !ok {
		return nil, false, t.missing(name)
	}
	plain, stale, err := key.TransformFromStorage(ctx, box, at)
	if err != nil {
		return nil, false, fmt.Errorf("key %s does not decrypt it: it was damaged or moved: %w", name, err)
	}
	return plain, stale || !t.writesWith(ctx, ring, name, at), nil
}

// writesWith reports whether values are encrypted with a key of a DefaultEncryption now. An
// EncryptionConfiguration may have the key, too.
func (t resourceTransformer) writesWith(ctx context.Context, ring *keyring, name string, at value.Context) bool {
	if !t.named {
		return t.byDefault && name == ring.current
	}
	probe, err := t.configured.TransformToStorage(ctx, nil, at)
	if err != nil {
		return true // unknown: leave the value as it is
	}
	written, _, ok := defaultKeyOf(probe)
	return ok && written == name
}

func (t resourceTransformer) missing(name string) error {
	if t.defaults == nil {
		return fmt.Errorf("it is encrypted with key %s, and this server has no keys", name)
	}
	return fmt.Errorf("it is encrypted with key %s, which is not in %s: append the line with this key of the server that wrote it, or of a backup of its data directory, and start again",
		name, t.defaults.KeyFile)
}

// defaultKeyOf splits a value that was encrypted by default.
func defaultKeyOf(stored []byte) (name string, box []byte, ok bool) {
	if !bytes.HasPrefix(stored, defaultKeyPrefix) {
		return "", nil, false
	}
	before, box, ok := bytes.Cut(stored[len(gcmPrefix):], []byte(":"))
	return string(before), box, ok
}

package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv"
)

// encryptionKeys is the file of DIR/pki with the keys of encryption at rest, shared by all servers of
// a datastore like the certificate authority. Each line has a key: its name, 32 bytes in base64, and
// the time when it was created. The first key encrypts, and all decrypt.
const encryptionKeys = "encryption.keys"

const encryptionKeysHead = `# Keys of encryption at rest. The first encrypts, and all decrypt: without them, the data cannot be read.
# "atoll keys rotate encryption" adds one.
`

// encryptedResources are encrypted by default: what contains credentials. The kubeconfigs of Clusters
// are in Secrets.
func encryptedResources() []schema.GroupResource {
	return []schema.GroupResource{
		corev1.Resource(corev1.ResourceSecrets.String()),
		infra.ResourceStateResource.GroupResource(),
		infra.PlanSecretsResource.GroupResource(),
	}
}

// encryptionKey is a line of the file.
type encryptionKey struct {
	name    string
	secret  []byte
	created time.Time
}

func newEncryptionKey(now time.Time) encryptionKey {
	secret := make([]byte, 32)
	rand.Read(secret)
	sum := sha256.Sum256(secret)
	return encryptionKey{name: apiserver.EncryptionKeyPrefix + hex.EncodeToString(sum[:6]), secret: secret, created: now.UTC().Truncate(time.Second)}
}

func parseEncryptionKeys(content []byte) (keys []encryptionKey, err error) {
	for n, line := range strings.Split(string(content), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fail := func(why string) error {
			return fmt.Errorf("read %s: line %d: %s: restore the file from a backup", encryptionKeys, n+1, why)
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fail("a line has the name of a key, its base64 and its time")
		}
		key := encryptionKey{name: fields[0]}
		if !strings.HasPrefix(key.name, apiserver.EncryptionKeyPrefix) || strings.Contains(key.name, ":") {
			return nil, fail("the name of a key begins with " + apiserver.EncryptionKeyPrefix + " and has no colon")
		}
		if key.secret, err = base64.StdEncoding.DecodeString(fields[1]); err != nil || len(key.secret) != 32 {
			return nil, fail("the key is not the base64 of 32 bytes")
		}
		if key.created, err = time.Parse(time.RFC3339, fields[2]); err != nil {
			return nil, fail("the time of the key is not of the form " + time.RFC3339)
		}
		for _, other := range keys {
			if other.name == key.name && !bytes.Equal(other.secret, key.secret) {
				return nil, fail("two keys have the name " + key.name)
			}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func formatEncryptionKeys(keys []encryptionKey) []byte {
	out := []byte(encryptionKeysHead)
	for _, k := range keys {
		out = fmt.Appendf(out, "%s %s %s\n", k.name, base64.StdEncoding.EncodeToString(k.secret), k.created.Format(time.RFC3339))
	}
	return out
}

// addEncryptionKeys returns a file's keys followed by those of another file that it lacks, and whether
// there are any.
func addEncryptionKeys(content, other []byte) (_ []byte, added bool, err error) {
	keys, err := parseEncryptionKeys(content)
	if err != nil {
		return nil, false, err
	}
	more, err := parseEncryptionKeys(other)
	if err != nil {
		return nil, false, err
	}
	for _, k := range more {
		if !slices.ContainsFunc(keys, func(have encryptionKey) bool { return have.name == k.name }) {
			keys, added = append(keys, k), true
		}
	}
	if !added {
		return content, false, nil
	}
	return formatEncryptionKeys(keys), true, nil
}

// readOrCreateEncryptionKeys creates the file on the first start, and on that of the first version
// that encrypts by default.
func readOrCreateEncryptionKeys(path string, now time.Time) error {
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return writeFile(path, formatEncryptionKeys([]encryptionKey{newEncryptionKey(now)}))
	case err != nil:
		return fmt.Errorf("read the keys of encryption at rest: %w", err)
	}
	keys, err := parseEncryptionKeys(content)
	if err == nil && len(keys) == 0 {
		err = fmt.Errorf("read %s: it has no keys: restore the file from a backup, or remove it to start with a new key if nothing is encrypted", encryptionKeys)
	}
	if err != nil {
		return fmt.Errorf("in %s: %w", filepath.Dir(path), err)
	}
	return nil
}

// rotateEncryption returns the files with a new key, which encrypts from now on.
func (k keyFiles) rotateEncryption(now time.Time) (keyFiles, error) {
	keys, err := parseEncryptionKeys(k[encryptionKeys])
	if err != nil {
		return nil, err
	}
	return k.withEncryptionKeys(append([]encryptionKey{newEncryptionKey(now)}, keys...)), nil
}

func (k keyFiles) withEncryptionKeys(keys []encryptionKey) keyFiles {
	next := keyFiles{}
	for name, content := range k {
		next[name] = content
	}
	next[encryptionKeys] = formatEncryptionKeys(keys)
	return next
}

// keyUse counts the values under each key of encryption, history included.
type keyUse map[string]int

// databaseFile is the database of a data directory without --datastore.
const databaseFile = "atoll.db"

// forgetGrace is how long after a rotation a running server may still encrypt with the former key.
const forgetGrace = 5 * time.Minute

// forgetEncryption returns the files without the former keys that nothing is encrypted with. use is
// nil if that is unknown.
func (k keyFiles) forgetEncryption(use keyUse, now time.Time) (keyFiles, error) {
	keys, err := parseEncryptionKeys(k[encryptionKeys])
	if err != nil || len(keys) < 2 || use == nil || now.Before(keys[0].created.Add(forgetGrace)) {
		return k, err
	}
	kept := keys[:1:1]
	for _, key := range keys[1:] {
		if use[key.name] > 0 {
			kept = append(kept, key)
		}
	}
	return k.withEncryptionKeys(kept), nil
}

// encryptionUse counts the values of the workspace under each key of encryption, in the present state
// and in the history.
func encryptionUse(ctx context.Context, store *Datastore) (keyUse, error) {
	all, err := store.Keyspaces(ctx)
	if err != nil {
		return nil, err
	}
	use := keyUse{}
	count := func(value []byte) {
		if rest, ok := bytes.CutPrefix(value, []byte("k8s:enc:aesgcm:v1:")); ok {
			if name, _, ok := bytes.Cut(rest, []byte(":")); ok {
				use[string(name)]++
			}
		}
	}
	for _, name := range all {
		if parent, _, ok := kv.ParsePartitionName(name); name != Workspace && (!ok || parent != Workspace) {
			continue
		}
		table, err := store.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := eachValue(ctx, table, count); err != nil {
			return nil, fmt.Errorf("look for values under former keys in keyspace %q: %w", name, err)
		}
	}
	return use, nil
}

// encryptionUseIn is encryptionUse of the database in a data directory. It returns nil if the database
// is elsewhere.
func encryptionUseIn(ctx context.Context, dataDir string) (use keyUse, err error) {
	path := filepath.Join(dataDir, databaseFile)
	if !exists(path) {
		return nil, nil
	}
	store, err := OpenDatastoreReadOnly(ctx, SQLiteURL(path))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return encryptionUse(ctx, store)
}

// eachValue calls see for the values of a table's current state and of its history.
func eachValue(ctx context.Context, table kv.Table, see func(value []byte)) error {
	const page = 500
	var head kv.Head
	for span := kv.Prefix(nil); ; {
		res, at, err := table.Range(ctx, kv.RangeRequest{Span: span, Limit: page}, false)
		if err != nil {
			return err
		}
		for _, e := range res.KVs {
			see(e.Value)
		}
		head = at
		if !res.More || len(res.KVs) == 0 {
			break
		}
		span.Start = append(slices.Clone(res.KVs[len(res.KVs)-1].Key), 0)
	}
	for after := max(head.Compacted, 1); after < head.Revision; {
		changes, _, err := table.Changes(ctx, after, head.Revision, page, true)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			return nil
		}
		for _, c := range changes {
			see(c.KV.Value)
			if c.Prev != nil {
				see(c.Prev.Value)
			}
		}
		after = changes[len(changes)-1].KV.ModRevision
	}
	return nil
}

// defaultEncryption returns what the API server encrypts with these keys.
func (s *Server) defaultEncryption() (*apiserver.DefaultEncryption, error) {
	path := s.pki.file(encryptionKeys)
	read := func(context.Context) ([]apiserver.EncryptionKey, error) {
		content, err := os.ReadFile(path)
		if err != nil && !(s.cfg.ReadOnly && errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("read the keys of encryption at rest: %w", err)
		}
		keys, err := parseEncryptionKeys(content)
		if err != nil {
			return nil, err
		}
		out := make([]apiserver.EncryptionKey, len(keys))
		for i, k := range keys {
			out[i] = apiserver.EncryptionKey{Name: k.name, Secret: k.secret}
		}
		return out, nil
	}
	out := &apiserver.DefaultEncryption{
		Resources: encryptedResources(), KeyFile: path, Metrics: s.metrics.encryption,
		Reload: func(ctx context.Context) ([]apiserver.EncryptionKey, error) {
			if s.datastore.Shared() {
				if err := s.refreshKeys(ctx); err != nil {
					return nil, err
				}
			}
			return read(ctx)
		},
	}
	var err error
	out.Keys, err = read(context.Background())
	return out, err
}

// refreshKeys takes over the keys of encryption that servers share now. The others are used from the next start.
func (s *Server) refreshKeys(ctx context.Context) error {
	table, err := s.datastore.Open(ctx, systemKeyspace)
	if err != nil {
		return err
	}
	res, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(sharedKey)}}, false)
	held, err := decodeSealed(res, err)
	if err != nil || held == nil || held.revision == s.sharedRevision.Load() {
		return err
	}
	file := cmp.Or(s.cfg.TokenFile, filepath.Join(s.cfg.DataDir, tokenFile))
	token, err := tokenIn(file)
	if err != nil {
		return err
	}
	files, err := held.open(token)
	if err != nil {
		return fmt.Errorf("%w: copy the new token to %s", err, file)
	}
	if content := files[encryptionKeys]; len(content) > 0 {
		if err := writeIfChanged(s.pki.file(encryptionKeys), content); err != nil {
			return err
		}
	}
	s.sharedRevision.Store(held.revision)
	return nil
}

// encryptionRefresh is how soon a server encrypts with a new key.
const encryptionRefresh = 30 * time.Second

// followEncryptionKeys makes this server encrypt with a new key while it runs, so that
// former ones can be forgotten.
func (s *Server) followEncryptionKeys(ctx context.Context) error {
	ticker := s.cfg.Clock.NewTicker(encryptionRefresh)
	defer ticker.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		switch err := s.api.ReloadEncryptionKeys(ctx); {
		case ctx.Err() != nil:
		case err == nil:
			logged = ""
		case err.Error() != logged:
			logged = err.Error()
			s.cfg.Log.Warn("cannot read the keys of encryption at rest again; trying again later", "err", err)
		}
	}
}

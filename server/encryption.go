package server

import (
	"bytes"
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

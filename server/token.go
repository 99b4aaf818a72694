package server

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// All servers of a datastore must accept the certificates and tokens that any of them
// signed, and read what any of them encrypted. So they share the certificate authority,
// the service-account key and the keys of encryption at rest. These are in the datastore, encrypted with a token that the datastore does not contain: a
// reader of its backup cannot sign anything.

// systemKeyspace holds data of the servers that belongs to no workspace.
const systemKeyspace = "atoll.system"

// sharedKey is the key of the shared files in it.
const sharedKey = "/servers/shared-keys/v1"

// sharedFiles of DIR/pki are the same on all servers. After a rotation of the authority,
// there is one more. Earlier versions had no keys of encryption.
var (
	sharedFiles  = []string{caCert, caKey, serviceAccountKey}
	rotatedFiles = append(slices.Clone(sharedFiles), crossCert, encryptionKeys)
)

const (
	tokenFile = "token"
	// minTokenLength rejects short passwords; a generated token has 26 characters.
	minTokenLength = 16
)

// sealed is the encrypted value in the datastore.
type sealed struct {
	Salt, Nonce, Box []byte

	revision kv.Revision // of the value, 0 if it was not read
}

// shareKeys installs the datastore's shared files in the directory or, for a new
// datastore, stores the directory's files there. Servers may call it concurrently: one
// of them creates the keys, the others use them.
func shareKeys(ctx context.Context, keyspace kv.Keyspace, cfg *Config, dir string) error {
	held, err := readSealed(ctx, keyspace)
	if err != nil {
		return err
	}
	token, err := readToken(cfg, held == nil)
	if err != nil {
		return err
	}
	if held == nil {
		if held, err = offerKeys(ctx, keyspace, cfg, token, dir); err != nil {
			return err
		}
	}
	for {
		files, err := held.open(token)
		if err != nil {
			return fmt.Errorf("%w: copy the file DATA_DIR/%s of a server that has the right token, and pass it with --token-file", err, tokenFile)
		}
		if err := sameKeys(files, dir); err != nil {
			return err
		}
		next, err := files.withEncryptionOf(dir, cfg)
		if err != nil {
			return err
		}
		if bytes.Equal(next[encryptionKeys], files[encryptionKeys]) || cfg.ReadOnly {
			return installShared(next, dir)
		}
		replaced, err := held.replace(ctx, keyspace, token, files, next)
		if err != nil {
			return err
		}
		if replaced {
			return installShared(next, dir)
		}
		if held, err = readSealed(ctx, keyspace); err != nil {
			return err
		}
		if held == nil {
			return errors.New("share the servers' keys: they were deleted at this moment: start again")
		}
	}
}

// withEncryptionOf returns the files with the keys of encryption that the directory has, too: those
// of an earlier datastore whose data was copied, or that an administrator has restored. If there are
// none at all, it creates one.
func (k keyFiles) withEncryptionOf(dir string, cfg *Config) (keyFiles, error) {
	local, err := os.ReadFile(filepath.Join(dir, encryptionKeys))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the keys of encryption at rest: %w", err)
	}
	former, err := k.formerHashes()
	if err != nil {
		return nil, err
	}
	if slices.Contains(former, hashOf(local)) {
		local = nil // some of its keys may be forgotten
	}
	merged, _, err := addEncryptionKeys(k[encryptionKeys], local)
	if err != nil {
		return nil, err
	}
	if len(merged) == 0 && !cfg.ReadOnly {
		merged = formatEncryptionKeys([]encryptionKey{newEncryptionKey(cfg.Clock.Now())})
	}
	next := maps.Clone(k)
	if len(merged) > 0 {
		next[encryptionKeys] = merged
	}
	return next, nil
}

// replace replaces the keys, and reports false if they were changed at the same moment. before are the
// present ones.
func (s *sealed) replace(ctx context.Context, keyspace kv.Keyspace, token string, before, next keyFiles) (bool, error) {
	next, err := next.replaced(before)
	if err != nil {
		return false, err
	}
	ours, err := seal(token, next)
	if err != nil {
		return false, err
	}
	value, err := json.Marshal(ours)
	if err != nil {
		return false, err
	}
	key := []byte(sharedKey)
	res, err := keyspace.Txn(ctx, kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareMod, Op: kv.Equal, Int: s.revision}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: value}}},
	})
	if err != nil {
		return false, fmt.Errorf("store the servers' keys: %w", err)
	}
	return res.Succeeded, nil
}

// sealedKeys are the keys in a datastore.
type sealedKeys struct {
	store *Datastore
	token string
	held  *sealed
	files keyFiles
}

// openSealed reads the keys from a datastore that servers use.
func openSealed(ctx context.Context, store *Datastore, tokenFile string) (*sealedKeys, error) {
	if tokenFile == "" {
		return nil, errors.New("--token-file is required: the file with the token of the servers, which is also DATA_DIR/token of each")
	}
	token, err := tokenIn(tokenFile)
	if err != nil {
		return nil, err
	}
	names, err := store.Keyspaces(ctx)
	if err != nil {
		return nil, err
	}
	var held *sealed
	if slices.Contains(names, systemKeyspace) {
		table, err := store.Open(ctx, systemKeyspace)
		if err != nil {
			return nil, err
		}
		res, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(sharedKey)}}, false)
		if held, err = decodeSealed(res, err); err != nil {
			return nil, err
		}
	}
	if held == nil {
		return nil, fmt.Errorf("no server has used the datastore %s yet: start one", store.URL())
	}
	files, err := held.open(token)
	if err != nil {
		return nil, fmt.Errorf("%w: pass the file DATA_DIR/token of a server with --token-file", err)
	}
	return &sealedKeys{store: store, token: token, held: held, files: files}, nil
}

// put replaces the keys, and seals them with the token.
func (s *sealedKeys) put(ctx context.Context, next keyFiles) error {
	keyspace, err := s.store.Keyspace(ctx, systemKeyspace, mvcc.Options{})
	if err != nil {
		return err
	}
	defer keyspace.Close()
	replaced, err := s.held.replace(ctx, keyspace, s.token, s.files, next)
	if err != nil {
		return err
	}
	if !replaced {
		return errors.New("the keys were changed by another command at the same moment: look at them with `atoll keys list`, and run the command again if it is still needed")
	}
	return nil
}

// offerKeys stores keys for all servers. It returns the keys that are finally stored:
// another server may have been first. If the directory already has keys, offerKeys
// offers those: the clients of a server should not notice when it moves to a shared
// datastore.
func offerKeys(ctx context.Context, keyspace kv.Keyspace, cfg *Config, token, dir string) (*sealed, error) {
	if _, err := os.Stat(filepath.Join(dir, caCert)); errors.Is(err, fs.ErrNotExist) {
		if dir, err = os.MkdirTemp(cfg.DataDir, ".pki-*"); err != nil {
			return nil, fmt.Errorf("create the servers' shared keys: %w", err)
		}
		defer os.RemoveAll(dir)
	}
	if _, err := openPKI(dir, cfg.servingNames(), cfg.Clock.Now()); err != nil {
		return nil, err
	}
	return putSealed(ctx, keyspace, token, dir)
}

// readToken returns the given token, or that of the last start, or, for a new
// datastore, generates one.
func readToken(cfg *Config, fresh bool) (string, error) {
	file, given := cfg.TokenFile, cfg.TokenFile != ""
	if !given {
		file = filepath.Join(cfg.DataDir, tokenFile)
	}
	token, err := tokenIn(file)
	switch {
	case err == nil:
		if !given {
			return token, nil
		}
		// The next start does not need --token-file.
		return token, writeIfChanged(filepath.Join(cfg.DataDir, tokenFile), []byte(token+"\n"))
	case !errors.Is(err, fs.ErrNotExist) || given:
		return "", err
	case !fresh:
		return "", fmt.Errorf("the datastore is already used by other servers, and this one does not have their token: copy the file DATA_DIR/%s of one of them and pass it with --token-file", tokenFile)
	}
	token = rand.Text()
	return token, writeFile(file, []byte(token+"\n"))
}

// tokenIn reads a token. Errors: fs.ErrNotExist.
func tokenIn(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := string(bytes.TrimSpace(content))
	if len(token) < minTokenLength {
		return "", fmt.Errorf("token in %s has %d characters: use at least %d, for example the output of `openssl rand -hex 16`", file, len(token), minTokenLength)
	}
	return token, nil
}

func readSealed(ctx context.Context, keyspace kv.Keyspace) (*sealed, error) {
	return decodeSealed(keyspace.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(sharedKey)}}))
}

func decodeSealed(res *kv.RangeResult, err error) (*sealed, error) {
	if err != nil {
		return nil, fmt.Errorf("read the servers' shared keys: %w", err)
	}
	if len(res.KVs) == 0 {
		return nil, nil
	}
	held := &sealed{revision: res.KVs[0].ModRevision}
	if err := json.Unmarshal(res.KVs[0].Value, held); err != nil {
		return nil, fmt.Errorf("read the servers' shared keys: %w: restore the datastore from a backup", err)
	}
	return held, nil
}

// putSealed stores the directory's files unless another server was first. It returns
// the stored value.
func putSealed(ctx context.Context, keyspace kv.Keyspace, token, dir string) (*sealed, error) {
	files, err := readKeyFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("share the servers' keys: %w", err)
	}
	ours, err := seal(token, files)
	if err != nil {
		return nil, err
	}
	value, err := json.Marshal(ours)
	if err != nil {
		return nil, err
	}
	key := []byte(sharedKey)
	res, err := keyspace.Txn(ctx, kv.TxnRequest{
		If:   []kv.Compare{{Span: kv.Span{Start: key}, Target: kv.CompareCreate, Op: kv.Equal}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: key, Value: value}}},
	})
	if err != nil {
		return nil, fmt.Errorf("share the servers' keys: %w", err)
	}
	if res.Succeeded {
		ours.revision = res.Revision
		return ours, nil
	}
	return readSealed(ctx, keyspace)
}

func seal(token string, files keyFiles) (*sealed, error) {
	plain, err := json.Marshal(files)
	if err != nil {
		return nil, err
	}
	s := &sealed{Salt: make([]byte, 16)}
	rand.Read(s.Salt)
	box, err := sealer(token, s.Salt)
	if err != nil {
		return nil, err
	}
	s.Nonce = make([]byte, box.NonceSize())
	rand.Read(s.Nonce)
	s.Box = box.Seal(nil, s.Nonce, plain, []byte(sharedKey))
	return s, nil
}

func (s *sealed) open(token string) (keyFiles, error) {
	box, err := sealer(token, s.Salt)
	if err != nil {
		return nil, err
	}
	plain, err := box.Open(nil, s.Nonce, s.Box, []byte(sharedKey))
	if err != nil {
		return nil, errors.New("the token does not decrypt the keys shared by the datastore's servers")
	}
	files := keyFiles{}
	return files, json.Unmarshal(plain, &files)
}

// iterations is OWASP's recommendation for PBKDF2 with SHA-256 (2023), for tokens
// chosen by people.
const iterations = 600_000

func sealer(token string, salt []byte) (cipher.AEAD, error) {
	key, err := pbkdf2.Key(sha256.New, token, salt, iterations, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// sameKeys returns an error for a file of the directory that differs from the shared one,
// unless a rotation has replaced that one, because the directory then belongs to another
// Atoll whose kubeconfigs are in use.
func sameKeys(files keyFiles, dir string) error {
	former, err := files.formerHashes()
	if err != nil {
		return err
	}
	for _, name := range rotatedFiles {
		path := filepath.Join(dir, name)
		old, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), name == encryptionKeys:
		case err != nil:
			return fmt.Errorf("read %s: %w", path, err)
		case !bytes.Equal(old, files[name]) && !slices.Contains(former, hashOf(old)):
			return fmt.Errorf("%s differs from the one that the datastore's servers share: the directory belongs to another Atoll: use an empty one with --data-dir", path)
		}
	}
	return nil
}

// installShared makes the directory's files equal to the shared ones.
func installShared(files keyFiles, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create directory %s: %w", dir, err)
	}
	return writeKeyFiles(files, dir)
}

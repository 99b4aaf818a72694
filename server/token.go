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
	"os"
	"path/filepath"

	"github.com/atoll-dev/atoll/kv"
)

// All servers of a datastore must accept the certificates and tokens that any of them
// signed. So they share the certificate authority and the service-account key. These
// are in the datastore, encrypted with a token that the datastore does not contain: a
// reader of its backup cannot sign anything.

// systemKeyspace holds data of the servers that belongs to no workspace.
const systemKeyspace = "atoll.system"

// sharedKey is the key of the shared files in it.
const sharedKey = "/servers/shared-keys/v1"

// sharedFiles of DIR/pki are the same on all servers.
var sharedFiles = []string{caCert, caKey, serviceAccountKey}

const (
	tokenFile = "token"
	// minTokenLength rejects short passwords; a generated token has 26 characters.
	minTokenLength = 16
)

// sealed is the encrypted value in the datastore.
type sealed struct {
	Salt, Nonce, Box []byte
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
	files, err := held.open(token)
	if err != nil {
		return fmt.Errorf("%w: copy the file DATA_DIR/%s of a server that has the right token, and pass it with --token-file", err, tokenFile)
	}
	return installShared(files, dir)
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
	content, err := os.ReadFile(file)
	switch {
	case err == nil:
		token := string(bytes.TrimSpace(content))
		if len(token) < minTokenLength {
			return "", fmt.Errorf("token in %s has %d characters: use at least %d, for example the output of `openssl rand -hex 16`", file, len(token), minTokenLength)
		}
		if !given {
			return token, nil
		}
		// The next start does not need --token-file.
		return token, writeIfChanged(filepath.Join(cfg.DataDir, tokenFile), []byte(token+"\n"))
	case !errors.Is(err, fs.ErrNotExist) || given:
		return "", fmt.Errorf("read token: %w", err)
	case !fresh:
		return "", fmt.Errorf("the datastore is already used by other servers, and this one does not have their token: copy the file DATA_DIR/%s of one of them and pass it with --token-file", tokenFile)
	}
	token := rand.Text()
	return token, writeFile(file, []byte(token+"\n"))
}

func readSealed(ctx context.Context, keyspace kv.Keyspace) (*sealed, error) {
	res, err := keyspace.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(sharedKey)}})
	if err != nil {
		return nil, fmt.Errorf("read the servers' shared keys: %w", err)
	}
	if len(res.KVs) == 0 {
		return nil, nil
	}
	held := new(sealed)
	if err := json.Unmarshal(res.KVs[0].Value, held); err != nil {
		return nil, fmt.Errorf("read the servers' shared keys: %w: restore the datastore from a backup", err)
	}
	return held, nil
}

// putSealed stores the directory's files unless another server was first. It returns
// the stored value.
func putSealed(ctx context.Context, keyspace kv.Keyspace, token, dir string) (*sealed, error) {
	ours, err := seal(token, dir)
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
		return ours, nil
	}
	return readSealed(ctx, keyspace)
}

func seal(token, dir string) (*sealed, error) {
	files := map[string][]byte{}
	for _, name := range sharedFiles {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("share the servers' keys: %w", err)
		}
		files[name] = content
	}
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

func (s *sealed) open(token string) (map[string][]byte, error) {
	box, err := sealer(token, s.Salt)
	if err != nil {
		return nil, err
	}
	plain, err := box.Open(nil, s.Nonce, s.Box, []byte(sharedKey))
	if err != nil {
		return nil, errors.New("the token does not decrypt the keys shared by the datastore's servers")
	}
	files := map[string][]byte{}
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

// installShared writes the missing files. It returns an error for a file that differs,
// because that belongs to another Atoll whose kubeconfigs are in use. It overwrites
// nothing.
func installShared(files map[string][]byte, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create directory %s: %w", dir, err)
	}
	for _, name := range sharedFiles {
		path := filepath.Join(dir, name)
		old, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := writeFile(path, files[name]); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("read %s: %w", path, err)
		case !bytes.Equal(old, files[name]):
			return fmt.Errorf("%s differs from the one that the datastore's servers share: the directory belongs to another Atoll: use an empty one with --data-dir", path)
		}
	}
	return nil
}

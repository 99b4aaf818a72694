package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/server"
)

// A kept fleet can be multiplied: filling 100,000 objects through the API takes an hour and
// a half on two cores, and the objects are all alike. A copy has the object as Atoll and its
// member store it, with another name and other UIDs. The digests by which Atoll verifies the
// object in the member are computed again. The program first checks that it computes the
// digests of the originals exactly as Atoll wrote them.

// copiesPerTxn is the number of copies that one transaction writes.
const copiesPerTxn = 60

// multiply copies the kept Deployments until there are as many as requested.
func (m *fleetBench) multiply(ctx context.Context) error {
	file := filepath.Join(m.dir, membersFile)
	members, err := readMembers(file)
	if err != nil {
		return err
	}
	store, err := server.OpenDatastore(ctx, server.SQLiteURL(filepath.Join(m.dir, serverDir, "atoll.db")))
	if err != nil {
		return err
	}
	defer store.Close()
	keyspace, err := store.Keyspace(ctx, "default", mvcc.Options{})
	if err != nil {
		return err
	}
	defer keyspace.Close()
	p := &copier{keyspace: keyspace, members: members}
	if err := p.read(ctx, m.Objects); err != nil || len(p.originals) == 0 {
		return err
	}
	for i := len(p.originals); i < m.Objects; i++ {
		if err := p.copy(ctx, i); err != nil {
			return err
		}
		if i%1000 == 0 {
			progress(fmt.Sprintf("%d of %d Deployments", i, m.Objects))
		}
	}
	if err := p.write(ctx); err != nil {
		return err
	}
	return writeMembers(file, members)
}

// copier makes the copies.
type copier struct {
	keyspace  kv.Keyspace
	members   map[string]keptMember
	originals []original
	next      []kv.Op
}

// original is a Deployment as Atoll and its member store it.
type original struct {
	namespace, name, member string
	uid, bindingUID         string
	deployment, binding     []byte
	there                   keptObject
}

const (
	deploymentsKey = "/registry/deployments/"
	bindingsKey    = "/registry/" + v1alpha1.Group + "/resourcebindings/"
	collectionKey  = "apps/v1 deployments"
)

// read reads the originals. It reads none if the members have enough objects.
func (p *copier) read(ctx context.Context, enough int) error {
	where := map[string]original{}
	for name, m := range p.members {
		for _, there := range m.Shelves[collectionKey].Objects {
			where[there.Name] = original{name: there.Name, member: name, namespace: there.Namespace, there: there}
		}
	}
	if len(where) >= enough {
		return nil
	}
	for i := 0; ; i++ {
		o, ok := where[objectName(fleetWorkload, i)]
		if !ok {
			if i == 0 {
				return fmt.Errorf("multiply the kept fleet: no member has %s", objectName(fleetWorkload, i))
			}
			return nil
		}
		var err error
		if o.deployment, err = p.get(ctx, deploymentsKey+o.namespace+"/"+o.name); err != nil {
			return err
		}
		if o.binding, err = p.get(ctx, bindingsKey+o.namespace+"/deployment.apps-"+o.name); err != nil {
			return err
		}
		var b v1alpha1.ResourceBinding
		if err := json.Unmarshal(o.binding, &b); err != nil {
			return fmt.Errorf("multiply the kept fleet: read the binding of %s: %w", o.name, err)
		}
		o.uid, o.bindingUID = string(b.Spec.Resource.UID), string(b.UID)
		if len(b.Status.Clusters) != 1 || string(b.Status.Clusters[0].UID) != o.there.UID {
			return fmt.Errorf("multiply the kept fleet: the binding of %s does not match the object in its member", o.name)
		}
		applied, err := appliedDigest(o.there)
		if err != nil {
			return err
		}
		if was := b.Status.Clusters[0].Applied; was != applied {
			return fmt.Errorf("multiply the kept fleet: Atoll recorded %s in %s with the digest %s, this program computes %s", o.name, o.member, was, applied)
		}
		p.originals = append(p.originals, o)
	}
}

func (p *copier) get(ctx context.Context, key string) ([]byte, error) {
	r, err := p.keyspace.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(key)}})
	if err != nil {
		return nil, err
	}
	if len(r.KVs) != 1 {
		return nil, fmt.Errorf("multiply the kept fleet: %s is not stored", key)
	}
	return r.KVs[0].Value, nil
}

// copy makes Deployment i from an original in the same member.
func (p *copier) copy(ctx context.Context, i int) error {
	o := p.originals[i%len(p.originals)]
	name, n := objectName(fleetWorkload, i), i/len(p.originals)
	another := func(uid string) string { return fmt.Sprintf("%08x", n) + uid[8:] } // the same length, because protobuf stores lengths
	names := strings.NewReplacer(o.name, name, o.uid, another(o.uid), o.bindingUID, another(o.bindingUID), fmt.Sprintf("%q", o.there.UID), fmt.Sprintf(`"%s-%d"`, o.there.UID, n))
	there := keptObject{Raw: []byte(names.Replace(string(o.there.Raw))), Spec: []byte(names.Replace(string(o.there.Spec))),
		UID: fmt.Sprintf("%s-%d", o.there.UID, n), Namespace: o.there.Namespace, Name: name, Generation: o.there.Generation}
	was, err := appliedDigest(o.there)
	if err != nil {
		return err
	}
	is, err := appliedDigest(there)
	if err != nil {
		return err
	}
	p.members[o.member].Shelves[collectionKey].Objects[o.namespace+"/"+name] = there
	binding := bytes.ReplaceAll([]byte(names.Replace(string(o.binding))), []byte(was), []byte(is))
	p.next = append(p.next,
		kv.Op{Put: &kv.PutOp{Key: []byte(deploymentsKey + o.namespace + "/" + name), Value: []byte(names.Replace(string(o.deployment)))}},
		kv.Op{Put: &kv.PutOp{Key: []byte(bindingsKey + o.namespace + "/deployment.apps-" + name), Value: binding}})
	if len(p.next) < 2*copiesPerTxn {
		return nil
	}
	return p.write(ctx)
}

func (p *copier) write(ctx context.Context) error {
	if len(p.next) == 0 {
		return nil
	}
	_, err := p.keyspace.Txn(ctx, kv.TxnRequest{Then: p.next})
	p.next = nil
	return err
}

// appliedDigest returns the digests of the object as applied to a member and as the member
// stores it, in the format of Atoll's syncer.
func appliedDigest(there keptObject) (string, error) {
	live := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(there.Raw))
	d.UseNumber()
	if err := d.Decode(&live); err != nil {
		return "", fmt.Errorf("read %s of a simulated member: %w", there.Name, err)
	}
	delete(live, "status")
	metadata, _ := live["metadata"].(map[string]any)
	uid := metadata["uid"]
	for _, field := range []string{"uid", "generation", "resourceVersion", "creationTimestamp"} {
		delete(metadata, field) // set by the member
	}
	desired := digestJSON(live)
	delete(live, "metadata")
	of := func(field string) any {
		if all, ok := metadata[field].(map[string]any); ok {
			return all
		}
		return map[string]any{}
	}
	return desired + "." + digestJSON([]any{live, uid, of("labels"), of("annotations")}), nil
}

func digestJSON(v any) string {
	raw, _ := json.Marshal(v) // it was decoded from JSON
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:12])
}

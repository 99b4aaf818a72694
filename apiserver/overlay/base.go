package overlay

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage/value"
)

// Base has the objects that every workspace begins with. They are not stored: a workspace has them until a request changes or deletes
// one. Nearly two hundred objects are the same in all workspaces, except for their UIDs and creation times.
type Base struct {
	keys        []string // sorted
	objects     map[string]template
	transformer func(schema.GroupResource) value.Transformer
}

// template is an encoded object with places for a UID and a creation time.
type template struct {
	resource   schema.GroupResource
	encoded    []byte
	uid, since int // where the two begin
}

// uidLength is the length of a UID in an encoded object, and timeLength that of the seconds of a time between 1978 and 3058.
const (
	uidLength  = 36
	timeLength = 5
)

// NewBase encodes the objects.
func (e *Encoder) NewBase(objects []Object) (*Base, error) {
	out := &Base{objects: make(map[string]template, len(objects)), transformer: e.Transformer}
	for _, o := range objects {
		key := e.Key(o)
		t, err := e.newTemplate(o)
		if err != nil {
			return nil, fmt.Errorf("encode %s %s: %w", o.Resource, o.Object.GetName(), err)
		}
		out.keys, out.objects[key] = append(out.keys, key), t
	}
	slices.Sort(out.keys)
	return out, nil
}

// newTemplate encodes an object with two UIDs and two creation times that differ in all bytes. The places are where the results differ.
func (e *Encoder) newTemplate(o Object) (template, error) {
	encode := func(uid string, seconds int64) ([]byte, error) {
		return e.encode(o, types.UID(uid), metav1.Unix(seconds, 0))
	}
	one, err := encode(strings.Repeat("0", uidLength), 1<<28)
	if err != nil {
		return template{}, err
	}
	other, err := encode(strings.Repeat("1", uidLength), 1<<35-1)
	if err != nil {
		return template{}, err
	}
	places := differences(one, other)
	if len(one) != len(other) || len(places) != 2 || places[0][1] != uidLength || places[1][1] != timeLength {
		return template{}, fmt.Errorf("the UID and the creation time are not found in it: %v", places)
	}
	return template{resource: o.Resource, encoded: one, uid: places[0][0], since: places[1][0]}, nil
}

// differences returns where two byte strings differ, each as the place and the length.
func differences(a, b []byte) (places [][2]int) {
	begin := -1
	for i := range min(len(a), len(b)) + 1 {
		differs := i < len(a) && i < len(b) && a[i] != b[i]
		switch {
		case differs && begin < 0:
			begin = i
		case !differs && begin >= 0:
			places = append(places, [2]int{begin, i - begin})
			begin = -1
		}
	}
	return places
}

// has reports whether a key is that of a base object.
func (b *Base) has(key string) bool {
	_, ok := b.objects[key]
	return ok
}

// between returns the keys from one on, before another one.
func (b *Base) between(from, end string) []string {
	first, _ := slices.BinarySearch(b.keys, from)
	last, _ := slices.BinarySearch(b.keys, end)
	return b.keys[first:max(first, last)]
}

// value returns a base object of a workspace as it would be stored.
func (b *Base) value(ctx context.Context, of Birth, key string) ([]byte, error) {
	t := b.objects[key]
	data := slices.Clone(t.encoded)
	copy(data[t.uid:], uuid.NewSHA1(uuid.NameSpaceOID, []byte(of.UID+" "+key)).String())
	binary.PutUvarint(data[t.since:t.since+timeLength], uint64(of.Created.Unix()))
	stored, err := b.transformer(t.resource).TransformToStorage(ctx, data, value.DefaultContext(key))
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", key, err)
	}
	return stored, nil
}

package kvtest

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestEqual changes every field of every type that equal compares, including those of
// nested values: if equal ignored a field, no suite would detect errors in it.
func TestEqual(t *testing.T) {
	for _, fresh := range []func() any{
		func() any { return filled[*kv.RangeResult]() },
		func() any { return filled[*kv.TxnResult]() },
		func() any { return filled[kv.KeyValue]() },
		func() any { return filled[[]kv.Event]() },
	} {
		want := fresh()
		check := func(what string, other any, same bool) {
			t.Helper()
			if got, known := equal(want, other); got != same || !known {
				t.Errorf("%T, %s: equal returns %v", want, what, got)
			}
		}
		check("not changed", fresh(), true)
		// Make change number n, as long as it exists.
		var n int
		for ; ; n++ {
			other := reflect.New(reflect.TypeOf(want)).Elem()
			other.Set(reflect.ValueOf(fresh()))
			left := n
			what, changed := change(other, fmt.Sprintf("%T", want), &left)
			if !changed {
				break
			}
			check(what, other.Interface(), false)
		}
		t.Logf("%T: %d changes", want, n)
	}
}

// TestEqualEmpty: not all wire protocols can distinguish absent from empty byte strings.
func TestEqualEmpty(t *testing.T) {
	absent := &kv.RangeResult{KVs: []kv.KeyValue{{Key: []byte("a")}}}
	empty := &kv.RangeResult{KVs: []kv.KeyValue{{Key: []byte("a"), Value: []byte{}}}}
	if same, _ := equal(absent, empty); !same {
		t.Error("an absent value and an empty value differ")
	}
	if same, _ := equal(&kv.RangeResult{}, &kv.RangeResult{KVs: []kv.KeyValue{}}); !same {
		t.Error("an absent list and an empty list differ")
	}
	if same, _ := equal((*kv.RangeResult)(nil), &kv.RangeResult{}); same {
		t.Error("an absent answer equals an empty one")
	}
}

// filled returns a value without zero fields.
func filled[T any]() T {
	var v T
	fill(reflect.ValueOf(&v).Elem(), 2)
	return v
}

// fill sets all fields; recursive types up to depth.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.Type() == reflect.TypeFor[*kv.TxnResult]() {
			if depth == 0 {
				return
			}
			depth--
		}
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), depth)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8:
		v.SetUint(1)
	default:
		panic("fill: " + v.Type().String())
	}
}

// change makes the n-th of all possible changes and describes it.
func change(v reflect.Value, path string, n *int) (string, bool) {
	turn := func() bool {
		*n--
		return *n < 0
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return "", false
		}
		if turn() {
			v.SetZero()
			return path + " absent", true
		}
		return change(v.Elem(), path, n)
	case reflect.Slice:
		if turn() {
			v.Set(v.Slice(0, v.Len()-1))
			return path + " shorter", true
		}
		for i := range v.Len() {
			if what, ok := change(v.Index(i), fmt.Sprintf("%s[%d]", path, i), n); ok {
				return what, true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if what, ok := change(v.Field(i), path+"."+v.Type().Field(i).Name, n); ok {
				return what, true
			}
		}
	default:
		if turn() {
			v.SetZero()
			return path + " zero", true
		}
	}
	return "", false
}

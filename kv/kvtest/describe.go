package kvtest

import (
	"fmt"
	"strings"

	"github.com/atoll-dev/atoll/kv"
)

// describe formats requests and responses readably: only nonzero fields, keys as text, and
// the values of pointers.
func describe(v any) string {
	switch v := v.(type) {
	case kv.Span:
		switch {
		case v.Single():
			return fmt.Sprintf("%q", v.Start)
		case v.ToEnd():
			return fmt.Sprintf("[%q, end)", v.Start)
		}
		return fmt.Sprintf("[%q, %q)", v.Start, v.End)
	case kv.RangeRequest:
		return describe(v.Span) + set(
			"rev", v.Revision, "limit", v.Limit, "countOnly", v.CountOnly, "keysOnly", v.KeysOnly,
			"sortTarget", v.SortTarget, "sortOrder", v.SortOrder,
			"minMod", v.MinModRevision, "maxMod", v.MaxModRevision, "minCreate", v.MinCreateRevision, "maxCreate", v.MaxCreateRevision)
	case kv.TxnRequest:
		return fmt.Sprintf("if %s then %s else %s", list(v.If), list(v.Then), list(v.Else))
	case kv.Compare:
		target := []string{"version", "create", "mod", "value", "lease", "nothing"}[v.Target]
		op := []string{"=", ">", "<", "!=", "always"}[v.Op]
		if v.Target == kv.CompareValue {
			return fmt.Sprintf("%s(%s) %s %q", target, describe(v.Span), op, v.Value)
		}
		return fmt.Sprintf("%s(%s) %s %d", target, describe(v.Span), op, v.Int)
	case kv.Op:
		switch {
		case v.Range != nil:
			return "range " + describe(*v.Range)
		case v.Put != nil:
			return fmt.Sprintf("put %q", v.Put.Key) + set("value", string(v.Put.Value), "lease", v.Put.Lease,
				"prev", v.Put.PrevKV, "ignoreValue", v.Put.IgnoreValue, "ignoreLease", v.Put.IgnoreLease)
		case v.Delete != nil:
			return "delete " + describe(v.Delete.Span) + set("prev", v.Delete.PrevKV)
		case v.Txn != nil:
			return "txn (" + describe(*v.Txn) + ")"
		}
		return "nothing"
	case kv.WatchRequest:
		return describe(v.Span) + set("from", v.StartRevision, "prev", v.PrevKV, "noPut", v.NoPut, "noDelete", v.NoDelete)
	case kv.WatchResponse:
		return fmt.Sprintf("{up to %d", v.Revision) + set("progress", v.Progress, "compacted", v.CompactRevision, "err", v.Err) +
			" " + list(v.Events) + "}"
	case kv.Event:
		kind := "put"
		if v.Type == kv.EventDelete {
			kind = "delete"
		}
		return fmt.Sprintf("%s %q at %d", kind, v.KV.Key, v.KV.ModRevision)
	case []kv.WatchResponse:
		return list(v)
	default:
		return fmt.Sprintf("%+v", v)
	}
}

func list[T any](in []T) string {
	out := make([]string, len(in))
	for i, v := range in {
		out[i] = describe(v)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// set formats pairs of a name and a value, without those that are zero.
func set(pairs ...any) string {
	var out strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		switch v := fmt.Sprint(pairs[i+1]); v {
		case "0", "false", "", "<nil>":
		default:
			fmt.Fprintf(&out, " %v=%s", pairs[i], v)
		}
	}
	return out.String()
}

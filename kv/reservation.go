package kv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// A client can reserve a part of a keyspace's limits for something that is stored elsewhere. An entry below ReservationPrefix has the
// amounts, and the keyspace counts them as used. So an entry is written in the transaction of the object that it belongs to, and the
// limits decide about both in one commit.
const (
	usageKeys = "/atoll/usage/"
	// LimitsKey is a key with limits (JSON of Limits). A keyspace with limits obeys the lower ones: its own, or those. All engines of a
	// table do so from the commit of the key on, also one that does not know of lowered limits yet.
	LimitsKey = usageKeys + "limits"
	// ReservationsKey is put, without a value, by each transaction that changes an entry. Its revision is that of the last such change, so
	// an engine need not read all entries again when other engines have committed.
	ReservationsKey = usageKeys + "reserved"
	// ReservationPrefix begins the keys of entries. A value is that of EncodeReservation.
	ReservationPrefix = ReservationsKey + "/"
	// CompiledKey, and the keys below it, are for counts of a client. Like all keys of this file, they do not count themselves, and a copy
	// of a keyspace has none.
	CompiledKey = usageKeys + "compiled"
)

// MaxReserved is the largest amount of a reservation, and thus the largest limit that matters: 32 Ti. PostgreSQL has no larger tables. A
// sum of 200,000 of them does not overflow.
const MaxReserved = 1 << 45

// EncodeReservation returns the value of an entry that reserves these amounts.
func EncodeReservation(amounts Usage) []byte {
	encoded, _ := json.Marshal(amounts) // numbers alone cannot fail
	return encoded
}

// Reservation returns the amounts of an entry's value. A value that is none reserves as much as possible: nothing is permitted by mistake.
func Reservation(value []byte) Usage {
	var u Usage
	most := Usage{MaxReserved, MaxReserved, MaxReserved}
	if err := json.Unmarshal(value, &u); err != nil || u.Min(Usage{}) != (Usage{}) || u.Max(most) != most {
		return most
	}
	return u
}

// StoredLimits returns the limits in the value of LimitsKey. A value that is none permits nothing.
func StoredLimits(value []byte) (l Limits) {
	if err := json.Unmarshal(value, &l); err != nil {
		none := int64(0)
		return Limits{&none, &none, &none}
	}
	return l
}

// IsReservation reports whether a key is that of an entry.
func IsReservation(key []byte) bool { return bytes.HasPrefix(key, []byte(ReservationPrefix)) }

// UsageSpan has the keys of this file.
func UsageSpan() Span { return Prefix([]byte(usageKeys)) }

// IsUsageKey reports whether a key is one of this file: it does not count itself, and means nothing in another keyspace.
func IsUsageKey(key string) bool { return strings.HasPrefix(key, usageKeys) }

// Reserved returns what a key adds to the usage in addition to UsageChange: the amounts of an entry, without the key itself.
func Reserved(e *KeyValue) Usage {
	if e == nil || !bytes.HasPrefix(e.Key, []byte(usageKeys)) {
		return Usage{}
	}
	own := UsageChange(e, nil)
	if !IsReservation(e.Key) {
		return own
	}
	return own.Plus(Reservation(e.Value))
}

// CheckReservations returns an error if the changes of a transaction have an entry and not ReservationsKey, or an entry that a lease
// could delete later without it.
func CheckReservations(changes []Change) error {
	changed, marked := false, false
	for i := range changes {
		is := &changes[i].KV
		if IsReservation(is.Key) {
			if changed = true; is.Lease != 0 {
				return fmt.Errorf("put %s with a lease: %w: reservations have none", is.Key, ErrInvalidRequest)
			}
		}
		marked = marked || string(is.Key) == ReservationsKey && !changes[i].Deleted
	}
	if changed && !marked {
		return fmt.Errorf("a transaction that changes a key below %s must put %s too: %w", ReservationPrefix, ReservationsKey, ErrInvalidRequest)
	}
	return nil
}

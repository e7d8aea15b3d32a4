// Package isnil finds nils that an interface hides.
package isnil

import "reflect"

// Nil reports whether a value is nil, or an interface that holds a nil pointer, map, channel or function. Somebody
// forgot to set such a value, and its first use would panic.
func Nil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func:
		return r.IsNil()
	default:
		return false
	}
}

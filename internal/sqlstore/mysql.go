package sqlstore

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// MySQLDSN is an address, mysql://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS, as the driver reads it.
func MySQLDSN(at *url.URL) string {
	user := at.User.Username()
	if password, has := at.User.Password(); has {
		user += ":" + password
	}
	host := net.JoinHostPort(cmp.Or(at.Hostname(), "127.0.0.1"), cmp.Or(at.Port(), "3306"))
	dsn := fmt.Sprintf("%s@tcp(%s)/%s", user, host, url.PathEscape(strings.TrimPrefix(at.Path, "/")))
	if at.RawQuery != "" {
		dsn += "?" + at.RawQuery
	}
	return dsn
}

// MySQLNow is MySQL's time when a statement began, in microseconds since 1970. It does not depend on the time zone of
// the session, and has no hour twice.
const MySQLNow = Expr(`TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`)

// An Expr is SQL that AppendRow takes as it is.
type Expr string

// AppendRow appends values in parentheses, as MySQL reads them: numbers, and bytes in hexadecimal. So nothing depends
// on character sets, sql_mode or the driver's way with arguments, and one round trip does.
func AppendRow(b []byte, values ...any) []byte {
	b = append(b, '(')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, v)
	}
	return append(b, ')')
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case Expr:
		return append(b, v...)
	case string:
		return appendHex(b, []byte(v))
	case []byte:
		if v == nil {
			return append(b, "NULL"...)
		}
		return appendHex(b, v)
	case bool:
		if v {
			return append(b, '1')
		}
		return append(b, '0')
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case uint64:
		return strconv.AppendUint(b, v, 10)
	}
	panic(fmt.Sprintf("sqlstore: a value of type %T", v))
}

func appendHex(b, value []byte) []byte {
	return append(hex.AppendEncode(append(b, "x'"...), value), '\'')
}

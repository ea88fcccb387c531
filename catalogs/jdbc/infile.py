"""Rows into MariaDB and MySQL by ``LOAD DATA LOCAL``: the server reads rows while the next ones are converted.

The server requests a "file", and is sent rows instead. PyMySQL's own ``local_infile`` is not enabled, although it would
work for a file of ours: it opens whatever file the *server* names, at any statement, so that a malicious server could
read the executor's files. Hence these few packets, sent through private methods of PyMySQL.

A value that does not fit is an error in an INSERT, but only a warning here; so any warning is raised as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from twophase.catalogs.jdbc import rendering

_is = pa.types

#: Bytes of one packet: well below the smallest ``max_allowed_packet`` of a server's defaults.
_PACKET_BYTES = 500_000
#: Bytes of rows that are converted to text together.
_PIECE_BYTES = 64_000_000
_COM_QUERY = 3
#: CLIENT_LOCAL_FILES, by which a client announces support of ``LOAD DATA LOCAL``.
CLIENT_FLAG = 128

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")
_TAKEN: tuple[tuple[Callable[[pa.DataType], bool], tuple[str, ...]], ...] = (
    (lambda k: _is.is_boolean(k) or _is.is_integer(k), _INTEGERS),
    (lambda k: _is.is_float32(k) or _is.is_float64(k), ("float", "double")),
    (_is.is_decimal, ("decimal",)),
    (
        lambda k: _is.is_string(k) or _is.is_large_string(k),
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext"),
    ),
    (
        rendering.is_binary,
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
    ),
    (_is.is_date, ("date",)),
    (_is.is_timestamp, ("datetime", "timestamp")),
    (_is.is_time, ("time",)),
)


def takes(driver: Any, schema: pa.Schema, columns: Mapping[str, str]) -> bool:
    """Whether rows can be loaded this way: the driver is PyMySQL, the server allows it, and all types are supported.

    Parameters
    ----------
    driver : object
        The driver's connection.
    schema : pyarrow.Schema
    columns : mapping of str to str
        The database's types of the columns, in the schema's order.
    """
    try:
        from pymysql.connections import Connection
    except ImportError:
        return False
    kinds = zip(schema, columns.values(), strict=True)
    if not isinstance(driver, Connection) or not all(_fits(field.type, kind) for field, kind in kinds):
        return False
    with driver.cursor() as cursor:
        cursor.execute("SHOW VARIABLES WHERE Variable_name IN ('local_infile', 'wsrep_load_data_splitting')")
        said = dict(cursor.fetchall())
    # A Galera cluster may split LOAD DATA into several transactions: then it would not be atomic.
    return said.get("local_infile") == "ON" and said.get("wsrep_load_data_splitting", "OFF") == "OFF"


def _fits(kind: pa.DataType, column: str) -> bool:
    name = column.partition("(")[0].partition(" ")[0].lower()
    return any(name in names for test, names in _TAKEN if test(kind))


def _request(driver: Any, table: str, names: Mapping[str, str]) -> None:
    """Send the statement, after which the server asks for the rows."""
    places = [f"@v{number}" if made else name for number, (name, made) in enumerate(names.items())]
    sets = [f"{name} = {made.format(f'@v{number}')}" for number, (name, made) in enumerate(names.items()) if made]
    with driver.cursor() as cursor:
        # Notes would be counted as warnings; and the rows may arrive as slowly as statements.
        cursor.execute("SET SESSION sql_notes = 0, net_read_timeout = GREATEST(@@net_read_timeout, @@wait_timeout)")
    driver._execute_command(
        _COM_QUERY,
        f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET utf8mb4 "
        "FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' "
        f"({', '.join(places)})" + (f" SET {', '.join(sets)}" if sets else ""),
    )
    if not driver._read_packet().is_load_local_packet():
        raise driver.InternalError(0, "the server does not ask for the rows")


def load(driver: Any, table: str, names: Mapping[str, str], pieces: Iterable[tuple[int, memoryview]]) -> int:
    """Append rows to a table, in the transaction of a PyMySQL connection; return the number of rows.

    Parameters
    ----------
    driver : pymysql.connections.Connection
    table : str
        The table's quoted name.
    names : mapping of str to str
        Quoted names of the columns, in the rows' order, with the SQL that converts a sent value; empty for none.
    pieces : iterable of tuple
        Rows as returned by :func:`texts`.

    Raises
    ------
    pymysql.err.DataError
        A value does not fit; some rows may be in the transaction.
    """
    _request(driver, table, names)
    sent, between = 0, True
    try:
        for rows, text in pieces:
            between = False
            for start in range(0, len(text), _PACKET_BYTES):
                driver.write_packet(text[start : start + _PACKET_BYTES])
            sent, between = sent + rows, True
    except BaseException:
        _give_up(driver, between)
        raise
    _check(driver, _end(driver), sent)
    return sent


def _give_up(driver: Any, between: bool) -> None:
    """End the rows, between two pieces of them, or the connection: it can be used only after their end is answered."""
    if between:
        _end(driver)
    else:
        driver._force_close()


def give_up_reading(driver: Any) -> None:
    """End the connection amid a streamed result: PyMySQL would read it to its end when it is closed."""
    driver._force_close()
    driver._result.unbuffered_active = False
    driver._result = None


def _end(driver: Any) -> Any:
    """Send the end of the rows; return the server's answer."""
    from pymysql.connections import OKPacketWrapper

    driver.write_packet(b"")
    return OKPacketWrapper(driver._read_packet())


def _check(driver: Any, answer: Any, sent: int) -> None:
    if answer.warning_count:
        with driver.cursor() as cursor:
            cursor.execute("SHOW WARNINGS")
            _, code, message = cursor.fetchone()
        raise driver.DataError(code, message)
    if answer.affected_rows != sent:
        raise driver.DataError(0, f"{sent} rows were sent, and {answer.affected_rows} arrived")


# -- texts -------------------------------------------------------------------------------------------------------------


def making(kind: pa.DataType) -> str:
    """The SQL that converts a sent value to the column's; empty if none is needed."""
    return "UNHEX({})" if rendering.is_binary(kind) else ""


def texts(batches: Iterable[pa.RecordBatch], title: str) -> Iterator[tuple[int, memoryview]]:
    """Convert batches to lines of tab-separated fields, each with its number of rows."""
    for batch in batches:
        for piece in _pieces(batch):
            yield piece.num_rows, _lines(piece, title)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    size = max(1, batch.num_rows * _PIECE_BYTES // max(batch.nbytes, _PIECE_BYTES))
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _lines(batch: pa.RecordBatch, title: str) -> memoryview:
    fields = [_field(field, column, title) for field, column in rendering.plain(batch)]
    fields[-1] = pc.binary_join_element_wise(fields[-1], "", "\n")
    lines = pc.binary_join_element_wise(*fields, "\t")
    _, _, data = lines.buffers()
    return memoryview(data)


def _field(field: pa.Field, column: pa.Array, title: str) -> pa.Array:
    """Convert the values of a column to fields."""
    kind = column.type
    rendering.refuse_not_finite(field, column, title, infinities=True)
    if _is.is_boolean(kind):
        found = column.cast(pa.int8()).cast(pa.string())
    elif _is.is_string(kind) or _is.is_large_string(kind):
        found = _escaped(column.cast(pa.string()))
    elif rendering.is_binary(kind):
        found = rendering.by_value(column, lambda value: rendering.as_bytes(value).hex())
    else:
        found = (rendering.utc(column) if _is.is_timestamp(kind) else column).cast(pa.string())
    return pc.fill_null(found, "\\N")


def _escaped(column: pa.Array) -> pa.Array:
    for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\0", "\\0")):
        column = pc.replace_substring(column, plain, escaped)
    return column

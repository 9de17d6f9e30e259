"""Sentences written for the tests, in nine languages, and a vocabulary trained on them."""

import unicodedata

from tests import vocabularies

TEXT = """\
The ferry left at 7:45, but nobody was on board.
“Which of the two keys is mine?” she asked — and took both.
In 2010, 19 of 1,250 letters came back unopened.
The baker's oven isn't hot enough for bread, so he bakes biscuits.
Der Schlüssel hängt größtenteils unbenutzt über der Tür.
Übermorgen fährt um 6 Uhr 30 kein Zug nach Süden.
Die Straße war naß, das Gemüse trocken und der Käse weiß.
„Wer hat meinen Regenschirm gesehen?“, rief er.
L'été dernier, la forêt près du château a brûlé.
Où as-tu rangé les œufs, les pâtes et le café ?
« Ça suffit », répéta-t-elle à la fenêtre.
Le garçon reçut trois lettres, dont une seule était signée.
Старый мост через реку закрыт до весны.
Она купила 3 кг яблок и ещё одну книгу.
«Когда вернётся поезд?» — спросил мальчик.
В этом доме живут только кошки, птицы и один сторож.
今天早上河边的雾很大，看不见对岸。
他把三本书和一把伞忘在车站了。
“你什么时候回来？”母亲在门口问道。
这座小城的夏天又长又热，冬天却很少下雪。
아침마다 우리 고양이는 창문 옆에서 잠을 잔다.
기차는 일곱 시에 떠났지만 아무도 타지 않았다.
“내 우산을 본 사람이 있어요?” 그가 물었다.
오래된 다리는 내년 봄까지 건널 수 없다.
القطار القديم لا يصل قبل الساعة السابعة.
اشترت أختي ثلاثة كتب ومظلة جديدة.
سأل الولد أمه: متى يعود أبي من السوق؟
الجسر فوق النهر مغلق حتى نهاية الشتاء.
เช้านี้หมอกหนามากจนมองไม่เห็นแม่น้ำ
แมวของเรานอนอยู่ข้างหน้าต่างทุกวัน
เขาลืมร่มและหนังสือสามเล่มไว้ที่สถานี
รถไฟออกเวลาเจ็ดโมงแต่ไม่มีใครขึ้น
Sáng nay sương mù dày đến nỗi không thấy bờ bên kia.
Cô ấy mua ba quyển sách và một chiếc ô mới.
“Khi nào tàu trở lại?” cậu bé hỏi mẹ.
Cây cầu cũ bị đóng cửa cho đến mùa xuân năm sau.
"""


def lines():
    return TEXT.splitlines()


def ugly():
    """Returns each line in 18 forms: decomposed, with doubled marks, marks out of order, ..."""
    texts = []
    for line in lines():
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            cases = (line, line.upper(), line.title())
            texts += [unicodedata.normalize(form, text) for text in cases]
        apart = unicodedata.normalize("NFD", line)
        texts += [apart[:9] + line[9:], "\u200b".join(line), line.replace(" ", "\xa0\u0301")]
        texts.append("".join(c * 2 if unicodedata.combining(c) else c for c in apart))
        texts.append("".join(f"{c}\u0301\u0323" for c in line))
        texts.append(f"{line} ΌΔΟΣ. ΟΔΟΣ İI ıi ｶﾞ ﾊﾟ か\u3099 e\u0323\u0302 ``x'' ```")
    return texts


def train_vocabulary(directory):
    """A few of its pieces end in a digit and a comma, as some of the published vocabulary do."""
    from tests.conftest import make_text

    text = [line.lower() for line in lines() * 3] + make_text(20).splitlines()
    text += ["in 2010, 19, 1,9 10, and 11, or 3, " * 9]
    return vocabularies.train(
        directory / "sentences",
        text,
        vocab_size=620,
        character_coverage=1.0,
        split_by_number=False,
        pad_piece="<pad>",
        unk_piece="<unk>",
    )
